"""Who had NaN or infinity where, found out by all ranks together.

A rank with a non-finite gradient still takes part in every exchange: compressed tensors carry a refusal in
their payload, those that travel dense their NaN through the sum. So every rank comes to know *that*
something is wrong without extra messages; only then do the ranks tell each other whose dense gradients it
was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from gradsieve.errors import NonFiniteGradient
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.messages import Messages

_SHOWN = 8


class NonFiniteLog:
    """What is known of non-finite gradients in the current step, by parameter."""

    def __init__(self) -> None:
        self._local: set[str] = set()  # not compressed, of this rank
        self._bad_sums: dict[str, Tensor] = {}  # not compressed: reduced gradients, the same on every rank
        self._found: dict[str, list[int]] = {}  # the ranks that had it, the same on every rank
        self._overflowed: dict[str, str] = {}  # dtypes of sums of finite gradients, the same on every rank
        self._refused: list[tuple[str, ...]] = []  # tensors that travelled together, the same on every rank

    def clear(self) -> None:
        """A step has ended."""
        for known in (self._local, self._bad_sums, self._found, self._overflowed):
            known.clear()
        self._refused.clear()

    @property
    def refused(self) -> bool:
        """Whether the last exchange must not be applied; the same on every rank."""
        return bool(self._bad_sums or self._found or self._overflowed or self._refused)

    def check_local(self, name: str, gradient: Tensor) -> None:
        """A new gradient of this rank that is not compressed: forget its last, remember if it is not finite.

        It is read once: small tensors, and the values of sparse ones.
        """
        for known in (self._bad_sums, self._found, self._overflowed):
            known.pop(name, None)
        self._local.discard(name)
        if not all_finite(gradient):
            self._local.add(name)

    def add_local(self, name: str) -> None:
        """Remember that this rank refused to send a compressed gradient."""
        self._local.add(name)

    def add_refused(self, names: Sequence[str]) -> None:
        """Remember that some rank refused to send one of these gradients, which travel together."""
        self._refused.append(tuple(names))

    def check_reduced(self, name: str, gradient: Tensor) -> None:
        """Look at such a gradient after its reduction, in the parameter's dtype: the same on every
        rank, before user code (clipping) can change it.
        """
        if not all_finite(gradient):
            self._bad_sums[name] = gradient

    def add_refusals(self, name: str, ranks: list[int]) -> None:
        """Remember which ranks refused to send a compressed gradient."""
        self._found[name] = ranks

    def add_overflow(self, name: str, gradient: Tensor) -> None:
        """Remember that a sum of finite gradients is too large for the parameter's dtype."""
        self._overflowed[name] = str(gradient.dtype)

    def raise_if_any(self, messages: Messages) -> None:
        """Raise on every rank if any gradient of the step was not finite on any rank.

        1. Refusals and overflows of compressed gradients are known to all ranks from the payloads.
        2. If a reduced sum is not finite (all ranks see the same sum, so all do this or none), tell each
           other whose part it was. If it was nobody's, the sum has overflowed.

        Raises:
            NonFiniteGradient: names parameters and ranks.
        """
        if self._bad_sums or self._refused:
            said = json.dumps(sorted(self._local)).encode()
            for rank, message in enumerate(messages.tell(said, "nonfinite").wait()):
                for name in json.loads(message):
                    self._found.setdefault(name, []).append(rank)
            for name, gradient in self._bad_sums.items():
                if name not in self._found:
                    self.add_overflow(name, gradient)
            for names in self._refused:
                if not any(name in self._found for name in names):
                    self._overflowed |= dict.fromkeys(names, "the float32 of sums")
            self._bad_sums.clear()
            self._refused.clear()
        if self._found:
            raise NonFiniteGradient(_non_finite_message(self._found))
        if self._overflowed:
            raise NonFiniteGradient(_overflow_message(self._overflowed))


def _non_finite_message(found: Mapping[str, list[int]]) -> str:
    def ranks_text(ranks: list[int]) -> str:
        return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))

    named = _shown([f"'{name}' on {ranks_text(ranks)}" for name, ranks in sorted(found.items())])
    return (
        f"NaN or infinity in the gradient of {named}. No weight and no residual was changed; the "
        "next step may go on. "
        "Check loss and learning rate; with a torch.amp.GradScaler pass grad_scaler= so that such steps are "
        "skipped."
    )


def _overflow_message(overflowed: Mapping[str, str]) -> str:
    named = _shown([f"'{name}' ({dtype})" for name, dtype in sorted(overflowed.items())])
    return (
        f"the gradient of {named} is finite on every rank, but all ranks' together, with what has waited in "
        "residuals, is too large for that type. No weight and no residual was changed. Use op=hvd.Average "
        "instead of Sum; keep parameters in float32 and compute under torch.autocast; clip gradients; or "
        "send more (density), so that less waits."
    )


def _shown(named: Sequence[str]) -> str:
    more = [f"{len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    return ", ".join([*named[:_SHOWN], *more])

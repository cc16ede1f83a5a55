"""Who had NaN or infinity where, found out by all ranks together.

A rank with a non-finite gradient still takes part in every exchange: compressed tensors carry a refusal in
their payload, dense ones their NaN through Horovod's sum. So every rank comes to know *that* something is
wrong without extra messages; only then do the ranks tell each other which of their dense gradients it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradsieve.errors import NonFiniteGradient
from gradsieve.kernels.magnitude import all_finite

from .exchange import gather_bytes

_SHOWN = 8


class NonFiniteLog:
    """What is known of non-finite gradients in the current step."""

    def __init__(self) -> None:
        self._local: list[str] = []  # dense parameters of this rank
        self._found: dict[str, list[int]] = {}  # parameter -> ranks, the same on every rank
        self._sum_is_bad = False

    def clear(self) -> None:
        """A step has ended."""
        self._local.clear()
        self._found.clear()
        self._sum_is_bad = False

    def check_local(self, name: str, gradient: Tensor) -> None:
        """Remember a dense gradient of this rank if it is not finite. Small tensors only: it reads them
        once.
        """
        if not all_finite(gradient):
            self._local.append(name)

    def add_refusals(self, name: str, ranks: list[int]) -> None:
        """Remember which ranks refused to send a compressed gradient."""
        self._found[name] = ranks

    def check_reduced(self, gradient: Tensor) -> None:
        """Look at a dense gradient after Horovod's reduction: the same on every rank, before user code
        (clipping) can change it.
        """
        self._sum_is_bad = self._sum_is_bad or not all_finite(gradient)

    def raise_if_any(self, process_set: Any, timeout: float) -> None:
        """Raise on every rank if any gradient of the step was not finite on any rank.

        1. Refusals are known to all ranks from the payloads.
        2. If a dense sum is not finite (all ranks see the same sum, so all do this or none), tell each other
           whose part it was.

        Raises:
            NonFiniteGradient: names parameters and ranks.
        """
        if self._sum_is_bad:
            messages = gather_bytes(json.dumps(self._local).encode(), "nonfinite", process_set, timeout)
            self._sum_is_bad = False
            for rank, message in enumerate(messages):
                for name in json.loads(message):
                    self._found.setdefault(name, []).append(rank)
            if not self._found:
                raise NonFiniteGradient(
                    "a sum of finite gradients overflowed in Horovod's all-reduce; no weight was changed. "
                    "Use op=hvd.Average with gradient_predivide_factor, or a loss scale."
                )
        if self._found:
            raise NonFiniteGradient(_message(self._found))


def _message(found: Mapping[str, list[int]]) -> str:
    def ranks_text(ranks: list[int]) -> str:
        return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))

    shown = [f"'{name}' on {ranks_text(ranks)}" for name, ranks in sorted(found.items())[:_SHOWN]]
    if len(found) > _SHOWN:
        shown.append(f"{len(found) - _SHOWN} more")
    return (
        f"NaN or infinity in the gradient of {', '.join(shown)}. No weight and no residual was changed; the "
        "next step may go on. "
        "Check loss and learning rate; with a torch.amp.GradScaler pass grad_scaler= so that such steps are "
        "skipped."
    )

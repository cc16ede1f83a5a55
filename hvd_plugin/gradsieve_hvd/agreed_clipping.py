"""Clipping before accumulation by a norm that the ranks tell each other between two steps.

The clipping itself is in `gradsieve.global_clipping`; here is how its messages travel: a gather of 524 bytes
per rank, begun at the end of a step and read when the next one's first gradient is there, after its forward
pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradsieve.errors import ConfigurationError
from gradsieve.global_clipping import GlobalClipping

from . import seam
from .exchange import MessageGather

if TYPE_CHECKING:
    from .compressor import HorovodCompressor


class AgreedClipping:
    """What ``clip_global_norm`` does for one optimizer; nothing if it is None."""

    def __init__(self, optimizer: Any, compressor: HorovodCompressor) -> None:
        self._optimizer = optimizer
        self._compressor = compressor
        self._clipping = self._new()
        self._pending: MessageGather | None = None
        self._elements = 0  # of all tensors; 0 until the first gradient of a step

    def _new(self) -> GlobalClipping | None:
        bound = self._compressor.clip_global_norm
        if bound is None:
            return None
        averages = seam.reduction_name(self._optimizer.op) == "Average"
        return GlobalClipping(bound, self._optimizer.process_set.size(), averages=averages)

    def factor(self, name: str, gradient: Tensor) -> float:
        """Return what to multiply a gradient with, which is read and not mutated; see `GlobalClipping`.

        Raises:
            ExchangeError: a rank did not tell its norm within the time-out.
        """
        if self._clipping is None:
            return 1.0
        if not self._elements:
            self._settle()
            self._elements = sum(p.numel() for _, p in seam.reduced_parameters(self._optimizer))
        unscale = 1.0 / self._compressor.loss_scale()
        return self._clipping.factor(gradient, name, gradient.numel() / self._elements, unscale)

    def end_round(self, number: int | None, taken: bool) -> None:
        """Start to tell the other ranks about the step; ``taken``: it was not skipped. ``number``: the
        optimizer's.
        """
        if self._clipping is not None:
            self._settle()
            self._elements = 0
            message = self._clipping.close_step(taken)
            self._pending = MessageGather(message, f"clipping.{number}", self._optimizer.process_set)

    def discard(self) -> None:
        """Forget what was measured in a step that is not going to be taken."""
        self._elements = 0
        if self._clipping is not None:
            self._clipping.discard_step()

    def restart(self) -> None:
        """Go on with ranks that may be others than before; what was in flight is lost."""
        before, self._clipping, self._pending = self._clipping, self._new(), None
        if before is not None and self._clipping is not None:
            self._clipping.load_state_dict(before.state_dict())

    def state_dict(self) -> dict[str, Any] | None:
        """Return the norms in force, the same on every rank; None without clipping.

        Raises:
            ExchangeError: a rank did not tell its norm within the time-out.
        """
        if self._clipping is None:
            return None
        self._settle()
        return self._clipping.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Take over norms; what is saved or missing without need is left alone: another setting is no error.

        Raises:
            ConfigurationError: it is not such a state; nothing was changed.
        """
        if not isinstance(state, Mapping | None):
            raise ConfigurationError(f"field 'clipping': found {type(state).__name__}, expected a dictionary")
        fresh = GlobalClipping(1.0, 1, averages=True) if self._clipping is None else self._new()
        assert fresh is not None
        if state is not None:
            fresh.load_state_dict(state)
        if self._clipping is not None:
            self._clipping, self._pending = fresh, None

    def _settle(self) -> None:
        if self._pending is not None and self._clipping is not None:
            messages = self._pending.wait(self._compressor.timeout_seconds)
            self._pending = None
            self._clipping.agree(messages)

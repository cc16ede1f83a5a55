"""Clipping before accumulation by the norm of this very step, for gradients that wait until all are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from gradsieve.global_clipping import GlobalClipping
from gradsieve_hvd.transport.messages import Messages

from .settings import Settings


class HeldClipping:
    """What ``clip_global_norm`` does for an optimizer that sends nothing before backward has ended.

    1. Each rank tells the others a sketch of all its gradients, 524 bytes (`gradsieve.global_clipping`).
    2. All ranks know the norm of the mean (or sum) from that, with a standard deviation of 6 %, and
       multiply all gradients with one factor, before anything is accumulated or sent.

    It stands where `AgreedClipping` stands for gradients that are sent one by one, and remembers nothing from
    step to step.

    number: the optimizer's, once the ranks have agreed on one.
    """

    def __init__(self, bound: float, settings: Settings, messages: Messages, *, averages: bool) -> None:
        self.number: int | None = None
        self._bound, self._settings, self._messages = bound, settings, messages
        self._averages = averages
        self._factor = 1.0

    def agree(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Find the step's factor; all ranks call it with what each is about to send, which is not mutated.

        Raises:
            ExchangeError: a rank did not answer in time.
        """
        clipping = GlobalClipping(self._bound, self._messages.size, averages=self._averages)
        unscale = 1.0 / self._settings.loss_scale()
        for name, gradient in gradients:
            clipping.measure(gradient.detach(), name, unscale)
        clipping.agree(self._messages.tell(clipping.close_step(), f"clipping.{self.number}").wait())
        self._factor = clipping.factor_in_force()

    def factor(self, name: str, gradient: Tensor) -> float:  # noqa: ARG002 - one for all
        """Return what to multiply a gradient with."""
        return self._factor

    def abstain(self, elements: int) -> None:
        """A tensor takes no part: it was not measured either."""

    def end_step(self) -> None:
        """The step was taken."""

    def discard(self) -> None:
        """The step is not going to be taken."""

    def restart(self) -> None:
        """Go on with ranks that may be others than before."""

    def state_dict(self) -> None:
        """Return that there is nothing to save."""

    def prepare(self, state: Mapping[str, Any] | None) -> Callable[[], None]:  # noqa: ARG002 - of no use here
        """Return what takes saved norms over: nothing."""
        return lambda: None

"""Clipping before accumulation by a norm that the ranks tell each other between two steps.

The clipping itself is in `gradsieve.global_clipping`; here is how its messages travel: a gather of 524 bytes
per rank, begun with a step's last gradient and read when the next one's first is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from gradsieve.global_clipping import GlobalClipping
from gradsieve_hvd.transport.messages import Messages, Replies

from .settings import Settings


class AgreedClipping:
    """What ``clip_global_norm`` does for one optimizer; nothing if it is None.

    number: the optimizer's, once the ranks have agreed on one.
    """

    def __init__(
        self,
        settings: Settings,
        named_parameters: Callable[[], Sequence[tuple[str, Parameter]]],
        messages: Messages,
        *,
        averages: bool,
    ) -> None:
        self.number: int | None = None
        self._settings, self._named_parameters = settings, named_parameters
        self._messages, self._averages = messages, averages
        self._clipping = self._new()
        self._pending: Replies | None = None
        self._elements = 0  # of all tensors; 0 until the first gradient of a step
        self._measured = 0  # of these
        self._told = False  # in this step
        self._late = False  # the last step is still to be told

    def _new(self) -> GlobalClipping | None:
        bound = self._settings.clip_global_norm
        return None if bound is None else GlobalClipping(bound, self._messages.size, averages=self._averages)

    def factor(self, name: str, gradient: Tensor) -> float:
        """Return what to multiply a gradient with, which is read and not mutated; see `GlobalClipping`.

        With the last gradient of a step the rank tells its norm, before that gradient is sent: so no rank can
        have ended its training before another tells.

        Raises:
            ExchangeError: a rank did not tell its norm within the time-out.
        """
        if self._clipping is None:
            return 1.0
        self._begin_step()
        unscale = 1.0 / self._settings.loss_scale()
        factor = self._clipping.factor(gradient, name, gradient.numel() / self._elements, unscale)
        self._count(gradient.numel())
        return factor

    def abstain(self, elements: int) -> None:
        """Note that a tensor of so many elements takes no part in the step."""
        if self._clipping is not None:
            self._begin_step()
            self._count(elements)

    def _begin_step(self) -> None:
        if not self._elements:
            self._settle()
            self._elements = sum(parameter.numel() for _, parameter in self._named_parameters())

    def _count(self, elements: int) -> None:
        self._measured += elements
        if self._measured == self._elements:
            self._tell()

    def _tell(self) -> None:
        if self._clipping is not None and not self._told:
            self._told = True
            message = self._clipping.close_step()
            self._pending = self._messages.tell(message, f"clipping.{self.number}")

    def end_step(self) -> None:
        """The step was taken. If some tensors never came (sparse embeddings), it is told with the next."""
        self._late = not self._told and bool(self._measured)
        self._told, self._elements, self._measured = False, 0, 0

    def discard(self) -> None:
        """Forget what was measured in a step that is not going to be taken, and what others tell of it."""
        if self._told:
            self._pending = None
        elif self._clipping is not None and not self._late:
            self._clipping.discard_step()
        self._told, self._elements, self._measured = False, 0, 0

    def restart(self) -> None:
        """Go on with ranks that may be others than before; what was in flight is lost."""
        before, self._clipping, self._pending, self._late = self._clipping, self._new(), None, False
        if before is not None and self._clipping is not None:
            self._clipping.load_state_dict(before.state_dict())

    def state_dict(self) -> dict[str, Any] | None:
        """Return the norms in force, the same on every rank; None without clipping.

        Raises:
            ExchangeError: a rank did not tell its norm within the time-out.
        """
        if self._clipping is None:
            return None
        if not self._late and not self._told:  # what is told in a step is not in force before the next one
            self._settle()
        return self._clipping.state_dict()

    def prepare(self, state: Mapping[str, Any] | None) -> Callable[[], None]:
        """Check saved norms, and return what takes them over: nothing without clipping; None begins anew.

        Raises:
            ConfigurationError: it is not such a state; nothing was changed.
        """
        fresh = GlobalClipping(1.0, 1, averages=True) if self._clipping is None else self._new()
        if state is not None and fresh is not None:
            fresh.load_state_dict(state)

        def take_over() -> None:
            if self._clipping is not None:
                self._clipping, self._pending, self._late = fresh, None, False

        return take_over

    def _settle(self) -> None:
        if self._late:
            self._tell()
            self._told = self._late = False
        if self._pending is not None and self._clipping is not None:
            messages = self._pending.wait()
            self._pending = None
            self._clipping.agree(messages)

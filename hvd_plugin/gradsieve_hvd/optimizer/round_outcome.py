"""What becomes of the sums of a round: the optimizer applies them, or the step is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from gradsieve_hvd.engine.reducer import Reducer

from .agreement import Agreement
from .bucket_reduction import BucketReduction
from .joining import Joining
from .momentum import TakenOverMomentum
from .sampling import BatchCounter


class RoundOutcome:
    """Tells all that must know of it whether a step was taken.

    Args:
        reducer: whose residuals become final, or are given back.
        gradients: of the round.
        momentum: the optimizer's, if it is applied before the exchange.
        joining: ranks that have joined wait to hear of it.
        batches: become samples that were seen, or come again.
        agreement: has what is to be agreed on after a step.
    """

    def __init__(
        self,
        reducer: Reducer,
        gradients: BucketReduction,
        momentum: TakenOverMomentum | None,
        joining: Joining,
        batches: BatchCounter,
        agreement: Agreement,
    ) -> None:
        self._reducer, self._gradients, self._momentum = reducer, gradients, momentum
        self._joining, self._batches, self._agreement = joining, batches, agreement

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Within, the optimizer applies what ``synchronize()`` left.

        Raises:
            ConfigurationError: a gradient was changed while it was exchanged.
            NonFiniteGradient: on all ranks.
            RankMismatch, ExchangeError: after the update; see `Reducer.commit`.
        """
        self._gradients.require_unchanged()
        self._reducer.before_update()
        with nullcontext() if self._momentum is None else self._momentum.suspended():
            yield
        self.commit()

    def commit(self) -> None:
        """The step was taken with what ``synchronize()`` left.

        Raises:
            RankMismatch, ExchangeError: see `Reducer.commit`.
        """
        if self._reducer.exchanged():
            self._joining.tell(taken=True)
            self._reducer.commit()
            self._batches.applied()
            self._agreement.after_step()

    def skip(self) -> None:
        """The step was not taken, and is not going to be.

        Raises:
            RankMismatch, ExchangeError: see `Reducer.skip`.
        """
        self._joining.tell(taken=False)
        self._batches.gave_up()
        self._reducer.skip()

"""The buckets of one round that are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsieve_hvd.engine.observer import StepObservers

from .bucket_reduction import BucketReduction
from .buckets import Bucket, DenseBucket
from .connection import Connection
from .exchange_thread import Pending
from .plan import BucketPlan
from .round_clock import RoundClock


class Launches:
    """Hands buckets to the thread in the plan's order, the same on every rank, whichever fills first.

    Args:
        plan: of the buckets.
        gradients: what becomes of the sums.
        connection: to the other ranks.
        clock: of rounds.
    """

    def __init__(
        self, plan: BucketPlan, gradients: BucketReduction, connection: Connection, clock: RoundClock
    ) -> None:
        self._plan, self._gradients, self._connection = plan, gradients, connection
        self._clock = clock
        self._launched: list[tuple[Bucket, Pending[Any]]] = []

    @property
    def launched(self) -> Sequence[tuple[Bucket, Pending[Any]]]:
        """The round's buckets so far, in their order."""
        return self._launched

    def launch_full(self) -> None:
        """Launch buckets as long as they are full."""
        buckets = self._plan.buckets
        while len(self._launched) < len(buckets) and (bucket := buckets[len(self._launched)]).full:
            if isinstance(bucket, DenseBucket):
                bucket.joined = self._connection.joining.joined
            names = ", ".join(f"'{name}'" for name in list(bucket.sizes)[:3])
            with self._clock.encoding():
                begin = bucket.begun(self._clock.ready_seconds)
                pending = self._connection.submit(begin, f"{bucket.name} ({names}, ...)")
            self._launched.append((bucket, pending))

    def finish(self, observers: StepObservers) -> None:
        """Wait for all of them, and overwrite gradients with the sums.

        Raises:
            ExchangeError, PayloadError: see `BucketReduction.finish`.
        """
        self._clock.waits()
        observers.waits_for([bucket.name for bucket, pending in self._launched if not pending.finished])
        for bucket, pending in self._launched:
            self._gradients.finish(bucket, pending)
        self._clock.ended(max(pending.transport.heard for _, pending in self._launched))
        observers.all_arrived()

    def end_round(self) -> None:
        """Forget them."""
        self._launched.clear()

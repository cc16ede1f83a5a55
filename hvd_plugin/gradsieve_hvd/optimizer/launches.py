"""The buckets of one round that are under way."""

from __future__ import annotations

import time
from typing import Any

from gradsieve_hvd.engine.observer import StepObservers

from .bucket_reduction import BucketReduction
from .buckets import Bucket, DenseBucket
from .connection import Connection
from .exchange_thread import Pending
from .plan import BucketPlan


class Launches:
    """Hands buckets to the thread in the plan's order, the same on every rank, whichever fills first.

    Args:
        plan: of the buckets.
        gradients: what becomes of the sums.
        connection: to the other ranks.
    """

    def __init__(self, plan: BucketPlan, gradients: BucketReduction, connection: Connection) -> None:
        self._plan, self._gradients, self._connection = plan, gradients, connection
        self._launched: list[tuple[Bucket, Pending[Any]]] = []
        self._began = 0.0

    def begin_round(self) -> None:
        """The first gradient of a round is ready; other ranks are told how long buckets took from then on."""
        self._began = time.monotonic()

    def launch_full(self) -> None:
        """Launch buckets as long as they are full."""
        buckets = self._plan.buckets
        while len(self._launched) < len(buckets) and buckets[len(self._launched)].full:
            bucket = buckets[len(self._launched)]
            if isinstance(bucket, DenseBucket):
                bucket.joined = self._connection.joining.joined
            names = ", ".join(f"'{name}'" for name in list(bucket.sizes)[:3])
            begin = bucket.begun(time.monotonic() - self._began)
            pending = self._connection.submit(begin, f"{bucket.name} ({names}, ...)")
            self._launched.append((bucket, pending))

    def finish(self, observers: StepObservers) -> None:
        """Wait for all of them, and overwrite gradients with the sums.

        Raises:
            ExchangeError, PayloadError: see `BucketReduction.finish`.
        """
        observers.waits_for([bucket.name for bucket, pending in self._launched if not pending.finished])
        for bucket, pending in self._launched:
            self._gradients.finish(bucket, pending)
        observers.all_arrived()

    def end_round(self) -> None:
        """Forget them."""
        self._launched.clear()

"""Shares by measured speed: every rank measures its own, and all change together (METHODS F)."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.events import Pushed
from gradsieve_hvd.server.modes import BalancedShares, announces
from gradsieve_hvd.server.node_table import NodeTable
from gradsieve_hvd.transport.messages import Messages

from .batch_counter import BatchCounter

_log = logging.getLogger("gradsieve.optimizer")
_RECENT = 7  # iterations that speeds are the median of
_SHORTEST = 1e-9  # seconds that a step takes


class Balance:
    """Measures this rank's speed, and changes all ranks' shares together.

    1. A step's speed is its samples over the seconds from the end of the step before to ``synchronize()``:
       loading and computing, without waiting for others, and without what takes as long for a small batch.
    2. After the third step, and then after every ``every``, the ranks tell each other their last speeds, and
       how many batches they have handed out to their loaders.
    3. Each decides alike; see `BalancedShares`. New shares hold from the first batch on that no rank has
       handed out.

    Args:
        batches: of the optimizer.
        every: steps from one announcement to the next.
        exchanging: returns the seconds of the present step that went into selecting and encoding.
        clock: seconds.

    changes: whether shares are changed; else gradients are weighed, and that is all.
    """

    def __init__(
        self,
        batches: BatchCounter,
        every: int,
        exchanging: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batches, self._every, self._rule = batches, every, BalancedShares()
        self.clock, self.exchanging, self.changes = clock, exchanging, True
        self._began: float | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def weight(self) -> float:
        """Return the factor of this rank's mean gradient that makes the ranks' mean one over samples.

        Raises:
            ConfigurationError: nobody deals batches.
        """
        sizes = self._sizes()
        return sizes[self._batches.rank] * len(sizes) / sum(sizes)

    def restart(self) -> None:
        """Forget speeds: the ranks may be others than before."""
        self._recent.clear()
        self._began = None

    @property
    def computing_seconds(self) -> float:
        """The median of this rank's last steps; 0 before the first."""
        return median(seconds for _, seconds in self._recent) if self._recent else 0.0

    def computed(self) -> None:
        """Note that the gradients of a step are there.

        What went into selecting and encoding is left out: with that, who has a small share would seem slower
        the smaller it is, and would never get a larger one.
        """
        if self._began is not None:
            seconds = max(self.clock() - self._began - self.exchanging(), _SHORTEST)
            self._recent.append((self._sizes()[self._batches.rank], seconds))

    def end_step(self, messages: Messages) -> None:
        """A step has ended, on all ranks; announce, if it is time.

        Raises:
            ExchangeError: a rank did not answer.
        """
        if self.changes and announces(self._batches.taken, self._every):
            self._announce(messages)
        self._began = self.clock()

    def _announce(self, messages: Messages) -> None:
        dealer = self._batches.dealer
        handed_out = self._batches.taken if dealer is None else dealer.handed_out
        said = json.dumps({"recent": list(self._recent), "handed_out": handed_out}).encode()
        told = [json.loads(each) for each in messages.tell(said, "shares").wait()]
        first = max(each["handed_out"] for each in told)
        present = self._batches.shares(first)
        table = NodeTable(len(told))
        for node, share, each in zip(table.nodes, present, told, strict=True):
            node.share = share
            for samples, seconds in each["recent"]:
                node.record_push(Pushed(0.0, 0, node.rank, 0, samples, seconds))
        decided = self._rule.decide(table)
        wanted = tuple(decided[rank] for rank in range(len(told)))
        if wanted != present:
            self._batches.change(first, wanted)
            if messages.rank == 0:
                shown = ", ".join(f"{share:.2f}" for share in wanted)
                _log.info("from batch %d on the ranks' shares are %s, by their speeds", first + 1, shown)

    def _sizes(self) -> tuple[int, ...]:
        if self._batches.dealer is None:
            raise ConfigurationError(
                "mode='balanced' deals batches by speed and needs to know them: make a "
                "gradsieve_hvd.DynamicSampler(dataset, optimizer, batch_size) and hand it to the DataLoader, "
                "batch_sampler=sampler"
            )
        return tuple(self._batches.dealer.sizes(self._batches.taken))

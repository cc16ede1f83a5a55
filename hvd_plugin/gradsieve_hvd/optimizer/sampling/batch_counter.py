"""How many batches an optimizer has taken, and by which shares they are dealt; the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradsieve_hvd.server.ranges import Pairs
from gradsieve_hvd.server.sample_ledger import SampleLedger

from .sampler_state import Epochs
from .served_batches import ServedBatches

Shares = tuple[float, ...]


class Dealer(Protocol):
    """Knows how many samples every rank has in each batch."""

    @property
    def handed_out(self) -> int:
        """One more than the number of the last batch that was handed to the loader, prefetched or not."""
        ...

    def sizes(self, batch: int) -> Sequence[int]:
        """Return every rank's samples in a batch."""
        ...

    @property
    def epoch(self) -> int:
        """The present one."""
        ...

    @property
    def used(self) -> Pairs:
        """Places of the epoch's order that are not dealt any more."""
        ...

    def deal_rest(self, used: Pairs) -> None:
        """Deal what else there is of the epoch, to the ranks that there are now."""
        ...

    def hand_over(self, handed_out: Sequence[int], ledger: SampleLedger, batches: ServedBatches) -> None:
        """Have a parameter server's rank 0 deal what is left of the epoch, from now on.

        handed_out: of every rank.
        """
        ...

    def take_over(self, epochs: Epochs) -> None:
        """Deal what a parameter server has left of some epochs."""
        ...


class BatchCounter:
    """Batches are numbered from where these ranks began, by the optimizer's steps: while it works on one,
    ``taken`` is its number. Shares belong to batches, so that ranks that have prefetched more
    than others agree.

    Args:
        rank: this one.
        ranks: how many train.

    taken: batches so far. samples_seen: those of all ranks that have become weights; None if no sampler says
    how many they are. dealer: the sampler that says; None for none.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.dealer: Dealer | None = None
        self._seen = self._pending = self.taken = 0
        self.restart(rank, ranks)

    def restart(self, rank: int, ranks: int) -> None:
        """Begin with batch 0 and equal shares, as ranks that are new do; samples seen go on."""
        used = () if self.dealer is None else self.dealer.used
        self._changes: list[tuple[int, Shares]] = [(0, (1.0,) * ranks)]
        self.rank, self.ranks = rank, ranks
        self.taken = self._pending = 0
        if self.dealer is not None:
            self.dealer.deal_rest(used)

    def deal_by(self, sampler: Dealer) -> None:
        """Have a sampler deal batches, rather than another one."""
        self.dealer = sampler

    def is_dealt_by(self, sampler: Dealer) -> bool:
        """Whether it is that one."""
        return self.dealer is sampler

    @property
    def samples_seen(self) -> int | None:
        """See above."""
        return None if self.dealer is None else self._seen

    def set_samples_seen(self, samples: int) -> None:
        """Go on from weights that had seen so many."""
        self._seen, self._pending = samples, 0

    def shares(self, batch: int) -> Shares:
        """Return the shares by which a batch is dealt."""
        return next(shares for first, shares in reversed(self._changes) if first <= batch)

    def change(self, first: int, shares: Shares) -> None:
        """Deal by other shares from a batch on, which no rank has handed out yet."""
        now = max(at for at, _ in self._changes if at <= self.taken)
        self._changes = [(at, each) for at, each in self._changes if now <= at < first] + [(first, shares)]

    def took(self, batches: int = 1) -> None:
        """Batches have been used."""
        if self.dealer is not None:
            self._pending += sum(sum(self.dealer.sizes(self.taken + more)) for more in range(batches))
        self.taken += batches

    def applied(self) -> None:
        """What was taken has become weights."""
        self._seen += self._pending
        self._pending = 0

    def gave_up(self) -> None:
        """What was taken does not become weights."""
        self._pending = 0

"""A sampler for ranks whose batches may differ in size, from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve.policies import state as saved

from .batch_counter import BatchCounter
from .dealing import Dealing
from .served_batches import ServedBatches
from .served_dealing import ServedDealing, within_an_epoch


class DynamicSampler(Sampler[list[int]]):
    """Deals an epoch's samples to the ranks: each to one of them, in batches as large as their shares say.

    ::

        sampler = gradsieve_hvd.DynamicSampler(dataset, optimizer, batch_size=32)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                ...  # zero_grad, backward, step: one step per batch

    1. All ranks shuffle the data set alike, by seed and epoch.
    2. Batch by batch they cut off the same stretch, ``batch_size`` times the number of ranks, and of it each
       takes its part; see `Dealing`. Every rank has the same number of batches, none is empty.
    3. A batch counts as used once the optimizer has taken its step. What a loader has prefetched and nobody
       has used is dealt again when the loader is iterated again in the same epoch.

    With a parameter server nobody knows beforehand who takes how many batches, and rank 0 deals them one by
    one to whoever asks; see `gradsieve_hvd.server.sample_ledger.SampleLedger`. A rank whose loader begins an
    epoch that the others have used up gets none. Training begins with the first batch, rather than step: all
    ranks must have the same weights by then.

    Args:
        dataset: anything with a length, the same on all ranks.
        optimizer: from `gradsieve_hvd.DistributedOptimizer`, for this sampler alone; it counts the steps.
        batch_size: of a rank with a share of 1.
        seed: of the order, the same on all ranks.
        shuffle: whether to shuffle at all.

    Raises:
        ConfigurationError: there are fewer samples than ranks, or the optimizer counts no batches.
    """

    def __init__(
        self, dataset: Any, optimizer: Any, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        if not is_count(batch_size, 1) or not is_count(seed, 0):
            raise ConfigurationError(
                f"DynamicSampler: batch_size={batch_size!r}, seed={seed!r}: expected integers of at least 1 "
                "and 0"
            )
        batches = getattr(optimizer, "batches", None)
        if not isinstance(batches, BatchCounter | ServedBatches):
            raise ConfigurationError(
                "DynamicSampler: this optimizer counts no batches; it must be a "
                "gradsieve_hvd.DistributedOptimizer"
            )
        self._size, self._seed, self._shuffle = len(dataset), seed, shuffle
        self._epoch, self._batch_size = 0, batch_size
        self._served: ServedDealing | None = None
        if isinstance(batches, ServedBatches):
            order = {"samples": self._size, "batch_size": batch_size, "seed": seed, "shuffle": shuffle}
            self._served = ServedDealing(optimizer, order)
        else:
            self._counter = batches
            self._begin(epoch=0, used=0)
            batches.dealer = self

    def _begin(self, *, epoch: int, used: int) -> None:
        """Deal an epoch, some samples of which were used; all, if too few are left to give each rank one."""
        ranks, taken = self._counter.ranks, self._counter.taken
        self._epoch, left = epoch, self._size - used
        self._skipped = used if left >= ranks else 0
        self._dealing = Dealing(self._size - self._skipped, ranks, self._batch_size)
        self._first = taken if left >= ranks else taken - self._dealing.batches
        self._handed_out = taken

    def __len__(self) -> int:
        """Return the batches of the epoch, the same number on all ranks; of one that was restored within, its
        rest. With a parameter server, the mean over ranks, of a whole epoch.
        """
        return self._dealing.batches if self._served is None else self._served.batches

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the places in the data set of this rank's batches, from the first that was not used.

        Raises:
            GradsieveError: with a parameter server: training has ended by an error.
        """
        if self._served is not None:
            order = self._order()
            for pairs in self._served.deal(self._epoch):
                yield [place for start, stop in pairs for place in order[start:stop]]
            return
        if self._used >= len(self):
            self._begin(epoch=self._epoch, used=0)
        order = self._order()[self._skipped :]
        self._handed_out = self._counter.taken
        for number in range(self._used, len(self)):
            batch = self._first + number
            part = self._dealing.part(number, self._counter.shares(batch), self._counter.rank)
            self._handed_out = batch + 1
            yield order[part.start : part.stop]

    @property
    def _used(self) -> int:
        """How many of the epoch's batches the optimizer has taken."""
        return self._counter.taken - self._first

    @property
    def handed_out(self) -> int:
        """See `Dealer`."""
        return max(self._handed_out, self._counter.taken)

    def sizes(self, batch: int) -> Sequence[int]:
        """See `Dealer`; beyond the end of the epoch, as in a new one."""
        return self._dealing.sizes((batch - self._first) % len(self), self._counter.shares(batch))

    @property
    def samples_used(self) -> int:
        """See `Dealer`: of steps that were taken; prefetched ones are dealt again."""
        return self._skipped + self._dealing.before(self._used)

    def deal_rest(self, used: int) -> None:
        """See `Dealer`; for loaders that are iterated again."""
        self._begin(epoch=self._epoch, used=used)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, unless it is the present one, which goes on where it was left."""
        if epoch == self._epoch:
            return
        if self._served is None:
            self._begin(epoch=epoch, used=0)
        else:
            self._epoch = epoch
            self._served.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and how many of its samples were used: prefetched ones are not.

        With a parameter server, within ``optimizer.consistent()``: what the weights there have used, of all
        ranks' epochs, of which ``epoch`` is the first that is not over.

        Raises:
            ConfigurationError: with a parameter server: elsewhere.
        """
        if self._served is not None:
            return self._served.state()
        return {
            "epoch": self._epoch,
            "used": self.samples_used,
            "samples": self._size,
            "samples_seen": self._counter.samples_seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the weights that were saved at the same time, on all ranks; there may be
        other ranks than before. Up to one sample per rank is left out if that is all that the epoch has left.

        Raises:
            ConfigurationError: it is of a data set of another size; or of a mode with a parameter server and
                this is none, or the other way round if training has begun.
        """
        epoch, used = saved.count(state, "epoch"), saved.count(state, "used")
        samples, seen = saved.count(state, "samples"), saved.count(state, "samples_seen")
        if samples != self._size or used > samples:
            raise ConfigurationError(
                f"the state of a DynamicSampler is of a data set of {samples} samples, and this one has "
                f"{self._size}: which of them were used cannot be told. Begin a new epoch instead."
            )
        if self._served is not None:
            self._served.load(state)
            self._epoch = epoch
            return
        if within_an_epoch(state):
            raise ConfigurationError(
                f"the state of a DynamicSampler is from within epoch {epoch} of a mode with a parameter "
                "server, whose ranks use samples out of order: go on in such a mode, or begin a new epoch"
            )
        self._counter.set_samples_seen(seen)
        self._begin(epoch=epoch, used=used)

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._size))
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(self._size, generator=generator, device="cpu").tolist()

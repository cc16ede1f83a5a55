"""A sampler for ranks whose batches may differ in size, from step to step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, Sampler

from gradsieve.density import is_count, plain_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.ranges import Pairs, Ranges, count
from gradsieve_hvd.server.sample_ledger import SampleLedger

from .batch_counter import BatchCounter, Shares
from .dealing import Dealing
from .sampler_state import Epochs, packed, unpacked
from .served_batches import ITERATED_AGAIN, ServedBatches
from .served_dealing import ServedDealing

_log = logging.getLogger("gradsieve.optimizer")


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
    one to whoever asks, in "dasp" as large as their shares say when they are dealt; see
    `gradsieve_hvd.server.sample_ledger.SampleLedger`. A rank whose loader begins an epoch that the others
    have used up gets none. Training begins with the first batch, rather than step: all ranks must have the
    same weights by then.

    Another epoch, or a restored state, ends an iteration. An optimizer has one sampler, the one that was made
    last.

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
        self._epoch, self._batch_size, self._optimizer = 0, batch_size, optimizer
        order = {"samples": self._size, "batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        self._served = ServedDealing(optimizer, order)
        self._counter = None if isinstance(batches, ServedBatches) else batches
        self._others: dict[int, Pairs] = {}  # used of epochs that come
        self._begun = 0  # epochs, or parts of such
        self._restored_at_end = False  # the epoch was used up when its state was saved
        if self._counter is not None:
            self._begin(self._counter, epoch=0, used=())
        self._batches = batches
        batches.deal_by(self)

    def _begin(self, counter: BatchCounter, *, epoch: int, used: Pairs) -> None:
        """Deal an epoch, some samples of which were used; all, if too few are left to give each rank one."""
        ranks, taken = counter.ranks, counter.taken
        self._begun += 1
        self._epoch, left = epoch, self._size - count(used)
        before = Ranges(used if left >= ranks else ())
        self._rest = before.without(self._size)
        self._dealing = Dealing(len(self._rest), ranks, self._batch_size)
        self._first = taken if left >= ranks else taken - self._dealing.batches
        self._handed_out = taken
        self._served.resume([(epoch, used), *self._others.items()])

    def __len__(self) -> int:
        """Return the batches of the epoch, the same number on all ranks; of one that was restored within, its
        rest. With a parameter server, the mean over ranks, of a whole epoch.
        """
        if self._served.training is not None:
            return self._served.batches
        return 0 if self._restored_at_end else self._dealing.batches

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the places in the data set of this rank's batches, from the first that was not used.

        Raises:
            ConfigurationError: batches are asked for by what would make batches of batches of them, or the
                optimizer has another sampler; while it goes on, another epoch has begun since.
            GradsieveError: with a parameter server: training has ended by an error.
        """
        asks: Any = sys._getframe(1).f_locals.get("self")  # noqa: SLF001 - who asks, they do not say
        if isinstance(asks, BatchSampler) and cast("object", asks.sampler) is self:
            raise ConfigurationError(
                "a DynamicSampler deals batches: hand it to the DataLoader as batch_sampler=, without "
                "batch_size=, rather than as sampler="
            )
        self._require_present()
        return self._dealt()

    def _dealt(self) -> Iterator[list[int]]:
        order = self._order()
        if self._served.training is not None:
            parts = self._served.deal(self._epoch)
        else:
            parts = self._dealt_alike(self._known_counter)
        for pairs in parts:
            yield [place for start, stop in pairs for place in order[start:stop]]

    def _dealt_alike(self, counter: BatchCounter) -> Iterator[Pairs]:
        """Yield parts of batches that all ranks compute, and whatever is dealt when that has ended."""
        batches = self._dealing.batches
        if self._taken(counter) >= batches:
            if self._restored_at_end:
                self._restored_at_end = False
                _log.warning("nothing is left of epoch %d, whose state was restored: it ends", self._epoch)
                return
            self._begin(counter, epoch=self._epoch, used=())
            batches = self._dealing.batches
        begun = self._begun
        for number in range(self._taken(counter), batches):
            if self._served.training is not None:
                yield from self._served.go_on(self._epoch)
                return
            batch = self._first + number
            # Another iteration of the epoch may have been further, and may go on.
            self._handed_out = max(self._handed_out, batch + 1)
            yield self._part(number, counter.shares(batch), counter.rank)
            self._require_present(begun)

    def _require_present(self, begun: int | None = None) -> None:
        """Check that this is the optimizer's sampler, and has begun no other epoch since.

        Raises:
            ConfigurationError: it is not, or does not.
        """
        if not self._batches.is_dealt_by(self):
            raise ConfigurationError(
                "this optimizer has had another DynamicSampler since, and counts the steps of the one "
                "that was made last. For an evaluation make a plain DataLoader"
            )
        if begun not in (None, self._begun):
            raise ConfigurationError(ITERATED_AGAIN)

    def _part(self, number: int, shares: Shares, rank: int) -> Pairs:
        part = self._dealing.part(number, shares, rank)
        return self._rest.between(part.start, part.stop)

    def _taken(self, counter: BatchCounter) -> int:
        """Return how many of the epoch's batches the optimizer has taken."""
        return counter.taken - self._first

    @property
    def _known_counter(self) -> BatchCounter:
        assert self._counter is not None, "there are modes without a parameter server"
        return self._counter

    @property
    def epoch(self) -> int:
        """The present one."""
        return self._epoch

    @property
    def handed_out(self) -> int:
        """See `Dealer`."""
        return max(self._handed_out, self._known_counter.taken)

    def sizes(self, batch: int) -> Sequence[int]:
        """See `Dealer`; beyond the end of the epoch, as in a new one."""
        number = (batch - self._first) % self._dealing.batches
        return self._dealing.sizes(number, self._known_counter.shares(batch))

    @property
    def used(self) -> Pairs:
        """See `Dealer`: of steps that were taken; prefetched ones are dealt again."""
        used = self._rest.without(self._size)
        used.add(self._rest.between(0, self._dealing.before(self._taken(self._known_counter))))
        return used.pairs

    def deal_rest(self, used: Pairs) -> None:
        """See `Dealer`; for loaders that are iterated again."""
        self._go_on(self._known_counter, epoch=self._epoch, used=used)

    def _go_on(self, counter: BatchCounter, *, epoch: int, used: Pairs) -> None:
        """Deal what a restored epoch has left: if that is nothing, its next iteration has no batches."""
        self._begin(counter, epoch=epoch, used=used)
        self._restored_at_end = self._size - count(used) < counter.ranks

    def hand_over(self, handed_out: Sequence[int], ledger: SampleLedger, batches: ServedBatches) -> None:
        """See `Dealer`; loaders go on with what they have."""
        counter = self._known_counter
        taken, last = self._taken(counter), self._first + self._dealing.batches
        held = [
            [
                self._part(number, counter.shares(self._first + number), rank)
                for number in range(taken, handed - self._first)
            ]
            for rank, handed in enumerate(handed_out)
        ]
        ledger.hand_over(self._epoch, self.used, self._size, held)
        ended = handed_out[counter.rank] >= last and not self._restored_at_end
        batches.hand_over(held[counter.rank], self._batch_size, ended=ended)
        self._restored_at_end = False
        self._served.resume(list(self._others.items()))

    def take_over(self, epochs: Epochs) -> None:
        """See `Dealer`; loaders are between two iterations."""
        self._others = dict(epochs)
        self._begin(self._known_counter, epoch=self._epoch, used=self._others.pop(self._epoch, ()))

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, unless it is the present one, which goes on where it was left.

        Raises:
            ConfigurationError: it is no integer of at least 0.
        """
        number = plain_count(epoch)
        if not is_count(number, 0):
            raise ConfigurationError(f"set_epoch({epoch!r}): expected an integer of at least 0")
        epoch = number
        if epoch == self._epoch:
            return
        self._restored_at_end = False
        training = self._served.training
        if training is None:
            used = self._others.pop(epoch, ())
            self._begin(self._known_counter, epoch=epoch, used=used)
        else:
            self._epoch = epoch
            training.batches.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and how many of its samples were used: prefetched ones are not.

        With a parameter server, within ``optimizer.consistent()``: what the weights there have used, of all
        ranks' epochs, of which ``epoch`` is the first that is not over.

        Raises:
            ConfigurationError: with a parameter server: elsewhere.
        """
        training, counter = self._served.training, self._counter
        if training is not None and (counter is None or training.begun or training.batches.dealt):
            epochs = training.epochs or [(self._epoch, ())]
            return packed(epochs, self._size, self._optimizer.samples_seen)
        known = self._known_counter
        return packed([(self._epoch, self.used), *self._others.items()], self._size, known.samples_seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the weights that were saved at the same time, on all ranks; there may be
        other ranks than before. Up to one sample per rank is left out if that is all that the epoch has left.

        If all of the epoch was used, its next iteration has no batches: a commit in the last step of an epoch
        has its number.

        Raises:
            ConfigurationError: it is of a data set of another size, or, with a parameter server, batches were
                dealt already.
        """
        epochs, seen = unpacked(state, self._size)
        (epoch, used), *others = epochs
        training = self._served.training
        if training is not None:
            training.require_not_begun("DynamicSampler.load_state_dict()")
            training.batches.seen_before = seen
        self._epoch, self._others = epoch, dict(others)
        self._served.resume(epochs)
        if self._counter is not None:
            self._counter.set_samples_seen(seen)
            self._go_on(self._counter, epoch=epoch, used=used)

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._size))
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(self._size, generator=generator, device="cpu").tolist()

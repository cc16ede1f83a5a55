"""Which samples of each epoch have been used, which a rank has, and which are still to be dealt."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradsieve.errors import PayloadError, RankMismatch

from .ranges import Pairs, Ranges, count

_log = logging.getLogger("gradsieve.server")

Data = Mapping[str, Any]
"""What is dealt, the same on all ranks: ``samples`` of the data set, ``batch_size``, ``resume`` (epochs of a
checkpoint, and their places that were used then), and what else the order depends on. JSON-able."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a rank is dealt, and how fast it uses that.

    share: of its next batch, in nominal batches. seconds: that a nominal batch takes it; None if unknown.
    """

    share: float = 1.0
    seconds: float | None = None


@dataclass(slots=True)
class _Epoch:
    """number: as users count. rest: places that nobody has. used: those behind a version of the weights, or
    in pushes that were discarded. taking: ranks that may still be dealt some.
    """

    number: int
    rest: Ranges
    used: Ranges
    taking: set[int] = field(default_factory=set)


class SampleLedger:
    """Deals an epoch's samples to whoever asks, on rank 0, for all ranks.

    1. A batch is of the places that come next in the epoch's order; those that have come back come first. It
       is as large as the rank's share says when it is dealt, and one sample at least.
    2. What a rank was dealt it has until it pushes it, in that order. What it has not pushed when it begins
       its loader again, or leaves, comes back.
    3. A rank is told that the epoch has ended when nothing is left; or, near the end, when the others, at
       the pace of their last pushes, would have used all that is left before it could end one more batch.
       Somebody is always dealt it.
    4. Ranks go through epochs in the same order, each at its own pace: *turns* count them. When all have
       begun a later one, what is left of an epoch, because the last ranks have stopped early, is left out.

    It knows no clock; every place is in one state at a time, which `Ranges` insists on.

    Args:
        workers: P.

    left_out: samples so far that nobody was dealt, or that came back, before all ranks went on.
    """

    def __init__(self, workers: int) -> None:
        self._data: Data | None = None
        self._epochs: dict[int, _Epoch] = {}  # by turn
        self._resumed: dict[int, Pairs] = {}
        self._held: list[deque[tuple[int, Pairs]]] = [deque() for _ in range(workers)]
        self._pushed: dict[int, tuple[int, Pairs]] = {}  # by push that waits for a release
        self._iterations, self._turns = [0] * workers, [0.0] * workers
        self._ended = [False] * workers  # the epoch, as the worker was told last
        self.left_out = 0

    def deal(
        self,
        rank: int,
        iteration: int,
        turn: int,
        epoch: int,
        data: Data,
        speeds: Sequence[Speed],
    ) -> Pairs:
        """Return a rank's next batch; nothing if the epoch has ended for it.

        iteration: of its loader, from 1. turn, epoch: which it wants a batch of. speeds: of every rank.

        Raises:
            RankMismatch: its data, or its order of epochs, are not those of the others.
            PayloadError: it goes back to an earlier iteration or turn.
        """
        self._compare(rank, data)
        if iteration < self._iterations[rank] or turn < self._turns[rank]:
            raise PayloadError(f"rank {rank} asks for batches of an iteration that it has left")
        if iteration > self._iterations[rank]:
            self._iterations[rank], self._turns[rank] = iteration, turn
            self._take_back(rank)
        present = self._epoch(rank, turn, epoch)
        present.taking.add(rank)
        self._ended[rank] = not present.rest or self._others_are_sooner(rank, present, speeds)
        if self._ended[rank]:
            present.taking.discard(rank)
            return ()
        places = present.rest.take(max(round(data["batch_size"] * speeds[rank].share), 1))
        self._held[rank].append((turn, places))
        return places

    def hand_over(self, epoch: int, used: Pairs, samples: int, held: Sequence[Sequence[Pairs]]) -> None:
        """Go on within the first turn's epoch, of which batches were used, and ranks' loaders have some."""
        taken = Ranges(used)
        for rank, batches in enumerate(held):
            self._held[rank].extend((0, places) for places in batches)
            for places in batches:
                taken.add(places)
        self._iterations = [1] * len(self._held)
        everyone = set(range(len(self._held)))
        self._epochs[0] = _Epoch(epoch, taken.without(samples), Ranges(used), everyone)
        self._ended = [not self._epochs[0].rest] * len(self._held)

    def pushed(self, rank: int, number: int) -> tuple[float | None, float | None]:
        """A rank has pushed the first of the batches that it has; return the size of it, and that of the next
        one, in nominal batches, where they are known.

        Raises:
            PayloadError: it has none.
        """
        if not self._held[rank]:
            raise PayloadError(f"rank {rank} pushes a batch that it was not dealt")
        held = self._held[rank]
        self._pushed[number] = (_, pushed) = held.popleft()
        return self._share(pushed), self._share(held[0][1]) if held else None

    def rests(self, rank: int) -> bool:
        """Return whether a rank has pushed all that it was dealt, and was told that its epoch has ended."""
        return self._ended[rank] and not self._held[rank]

    def decided(self, number: int) -> None:
        """A push has become weights, or never will; of one without dealt samples, nothing."""
        if number in self._pushed:
            turn, places = self._pushed.pop(number)
            self._epochs[turn].used.add(places)
            self._forget_epochs()

    def left(self, rank: int) -> None:
        """A rank will not push any more."""
        self._turns[rank] = math.inf
        self._take_back(rank)

    def state(self) -> list[tuple[int, Pairs]]:
        """Return the epochs that are not over, first those begun first, each with the places used: for
        ``resume``. What was pushed and is not in the weights yet was not used.
        """
        begun = [(each.number, each.used.pairs) for _, each in sorted(self._epochs.items())]
        return begun + sorted(self._resumed.items())

    def _compare(self, rank: int, data: Data) -> None:
        if self._data is None:
            self._data = data
            self._resumed = {epoch: tuple(map(tuple, used)) for epoch, used in data["resume"]}
        differ = [name for name in self._data.keys() | data.keys() if self._data.get(name) != data.get(name)]
        if differ:
            first = min(differ)
            raise RankMismatch(
                f"rank {rank} deals other samples than the rank that began: {first} is {data.get(first)!r} "
                f"there, and {self._data.get(first)!r} elsewhere. Make the same DynamicSampler on all ranks"
            )

    def _epoch(self, rank: int, turn: int, number: int) -> _Epoch:
        assert self._data is not None, "it was compared"
        if turn not in self._epochs:
            used = Ranges(self._resumed.pop(number, ()))
            self._epochs[turn] = _Epoch(number, used.without(self._data["samples"]), used)
        present = self._epochs[turn]
        if present.number != number:
            raise RankMismatch(
                f"rank {rank} begins epoch {number} where others have begun {present.number}: all ranks go "
                "through the same epochs in the same order (sampler.set_epoch)"
            )
        self._forget_epochs()
        return present

    def _others_are_sooner(self, rank: int, epoch: _Epoch, speeds: Sequence[Speed]) -> bool:
        own = speeds[rank]
        if own.seconds is None or self._data is None:
            return False
        end = own.seconds * (self._held_share(rank) + own.share)
        left: float = len(epoch.rest) / self._data["batch_size"]
        for other in epoch.taking - {rank}:
            each = speeds[other]
            if each.seconds:
                batches = math.ceil((end / each.seconds - self._held_share(other)) / each.share) - 1
                left -= max(batches, 0) * each.share
        return left <= 0

    def _share(self, places: Pairs) -> float | None:
        return None if self._data is None else count(places) / self._data["batch_size"]

    def _held_share(self, rank: int) -> float:
        return sum(self._share(places) or 0.0 for _, places in self._held[rank])

    def _take_back(self, rank: int) -> None:
        for turn, places in self._held[rank]:
            self._epochs[turn].rest.add(places)
        self._held[rank].clear()
        for turn, epoch in self._epochs.items():
            if turn < self._turns[rank]:
                epoch.taking.discard(rank)
        self._forget_epochs()

    def _forget_epochs(self) -> None:
        waiting = {turn for turn, _ in self._pushed.values()}
        for turn in [each for each in self._epochs if each < min(self._turns) and each not in waiting]:
            epoch = self._epochs.pop(turn)
            if left := len(epoch.rest):
                self.left_out += left
                text = "%d samples of epoch %d are left out: its last rank left it early"
                _log.info(text, left, epoch.number)

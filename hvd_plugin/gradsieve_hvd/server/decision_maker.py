"""The decision-maker: it asks the mode what to do, and writes the orders."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from .events import (
    Continue,
    Contribution,
    Discard,
    Event,
    Left,
    Pushed,
    Release,
    Reply,
    Rested,
    Resumed,
    Started,
    WakeAt,
    Woke,
)
from .letters import (
    Answer,
    AskBatch,
    AskWeights,
    Dealt,
    Drop,
    Hyperparameters,
    Leave,
    Letter,
    MakeVersion,
    Order,
    Orders,
    Push,
    Send,
    Stop,
    order_as_json,
)
from .node_table import Mode, NodeTable, Phase, take_turn
from .ranges import Pairs
from .sample_ledger import SampleLedger, Speed

_log = logging.getLogger("gradsieve.server")

Outgoing = list[tuple[Sequence[int], Letter]]
"""Letters with the ranks that they go to, in the order in which they are posted."""


class DecisionMaker:
    """One for all ranks: what it orders, shards do in its order, so that a version is the same everywhere.

    It knows neither tensors nor clocks: times come with what it is told.

    Args:
        mode: what decides. workers: P. now: when the workers began their first batch, which all may compute.
        shards: the ranks that keep something, and are given orders.
        with_state: whether everybody gets the optimizer's state, too, with the last weights.
        samples: what deals them, where a sampler asks, and goes on after these workers have left; None for
            one whose last workers they are.

    wake_at: when to call `wake`, if it is told nothing before; None for never. missed: how many gradients
    were applied, by the number of releases that each had missed. discarded: pushes that never are. pushes,
    computing: of each rank so far, and the seconds that it has spent on them. ends: whether workers are told
    to leave; may be set by another thread.
    """

    def __init__(
        self,
        mode: Mode,
        workers: int,
        now: float,
        shards: Iterable[int],
        *,
        with_state: bool = False,
        samples: SampleLedger | None = None,
    ) -> None:
        self._mode, self._table = mode, NodeTable(workers)
        self._ledger = SampleLedger(workers) if samples is None else samples
        self._ends_with_workers = samples is None
        self._everyone, self._shards, self._with_state = range(workers), sorted(shards), with_state
        self._samples: dict[int, int] = {}  # by push that waits for a release
        self._released_samples = 0
        self._hyperparameters: Hyperparameters = []
        self.wake_at: float | None = None
        self.missed: Counter[int] = Counter()
        self.discarded = 0
        self.pushes, self.computing = [0] * workers, [0.0] * workers
        self.ends = False
        take_turn(self._table, mode, Started(now))  # everybody has the initial weights

    @property
    def version(self) -> int:
        """The newest."""
        return self._table.version

    def hear(self, rank: int, letter: Letter, now: float) -> Outgoing:
        """Return what follows from a worker's letter."""
        match letter:
            case Push():
                self._hyperparameters = letter.hyperparameters or self._hyperparameters
                self._samples[letter.number] = letter.samples
                self.pushes[rank] += 1
                self.computing[rank] += letter.seconds + letter.encoding_seconds
                share, following = self._ledger.pushed(rank, letter.number) if letter.dealt else (None, None)
                pushed = Pushed(
                    now, letter.number, rank, letter.version, letter.samples, letter.seconds, share, following
                )
                return self._turn(pushed)
            case AskBatch():
                return [([rank], self._dealt(rank, letter)), *self._resumed(rank, now)]
            case Leave():
                if self._ends_with_workers:
                    self._ledger.left(rank)
                return [*self._turn(Left(now, rank)), *self._ending()]
            case AskWeights(with_state=with_state):
                send = Send((rank,), (self._table.nodes[rank].version,), with_state=with_state)
                answer = self._answer(self.version, 1.0, self._ledger.state())
                return [(self._shards, _orders([send])), ([rank], answer)]
        raise TypeError(type(letter).__name__)

    def wake(self, now: float) -> Outgoing:
        """Return what follows from time alone."""
        self.wake_at = None
        return self._turn(Woke(now))

    def _turn(self, event: Event) -> Outgoing:
        outgoing = self._decided(event)
        while resting := [n for n in self._table.in_phase(Phase.COMPUTING) if self._ledger.rests(n.rank)]:
            outgoing += self._decided(Rested(event.now, resting[0].rank))
        return outgoing

    def _resumed(self, rank: int, now: float) -> Outgoing:
        """Return what follows from a batch that a rank was dealt, or was not."""
        phase, rests = self._table.nodes[rank].phase, self._ledger.rests(rank)
        if phase is Phase.RESTING and not rests:
            return self._turn(Resumed(now, rank))
        return self._turn(Rested(now, rank)) if phase is Phase.COMPUTING and rests else []

    def _decided(self, event: Event) -> Outgoing:
        pending = dict(self._table.pending)
        bases = [node.version for node in self._table.nodes]
        shares = [node.share for node in self._table.nodes]
        if isinstance(event, Pushed):
            pending[event.number] = event
        version = self._table.version
        orders: list[Order] = []
        answers: Outgoing = []
        fresh: list[int] = []
        for action in take_turn(self._table, self._mode, event):
            match action:
                case Release(contributions):
                    version += 1
                    orders.append(MakeVersion(version, contributions, self._hyperparameters))
                    self._count(contributions, pending, version)
                case Discard(number):
                    orders.append(Drop(number))
                    del self._samples[number]
                    self._ledger.decided(number)
                    self.discarded += 1
                case Reply(rank, share):
                    fresh.append(rank)
                    answers.append(([rank], self._answer(self.version, share, held=self._held(rank, event))))
                case Continue(rank):
                    share, held = self._table.nodes[rank].share, self._held(rank, event)
                    answers.append(([rank], self._answer(None, share, held=held)))
                case WakeAt(time):
                    self.wake_at = time
        if (now := [node.share for node in self._table.nodes]) != shares:
            _log.info("the ranks' batches follow their speeds: %s", ", ".join(f"{each:.2f}" for each in now))
        if fresh:
            orders.append(Send(tuple(fresh), tuple(bases[rank] for rank in fresh)))
        return [*([(self._shards, _orders(orders))] if orders else []), *answers]

    def _count(self, contributions: Sequence[Contribution], pending: dict[int, Pushed], version: int) -> None:
        for each in contributions:
            self.missed[version - 1 - pending[each.number].version] += 1
            self._released_samples += self._samples.pop(each.number)
            self._ledger.decided(each.number)

    def _dealt(self, rank: int, asked: AskBatch) -> Dealt:
        speeds = [Speed(node.share, node.nominal_seconds) for node in self._table.nodes]
        places = self._ledger.deal(rank, asked.iteration, asked.turn, asked.epoch, asked.data, speeds)
        return Dealt(iteration=asked.iteration, places=places)

    def _held(self, rank: int, event: Event) -> float:
        return event.now - self._table.nodes[rank].push_time

    def _answer(
        self,
        version: int | None,
        share: float,
        epochs: Sequence[tuple[int, Pairs]] = (),
        *,
        held: float = 0.0,
    ) -> Answer:
        missed = sum(releases * gradients for releases, gradients in self.missed.items())
        staleness = missed / max(self.missed.total(), 1)
        return Answer(
            version=version,
            share=share,
            samples=self._released_samples,
            staleness=staleness,
            leave=self.ends,
            epochs=list(epochs),
            held_seconds=held,
        )

    def _ending(self) -> Outgoing:
        if self._table.active:
            return []
        everyone, bases = tuple(self._everyone), tuple(node.version for node in self._table.nodes)
        stop = Stop(version=self.version, samples=self._released_samples)
        send = Send(everyone, bases, last=True, with_state=self._with_state)
        return [(self._shards, _orders([send])), (everyone, stop)]


def _orders(orders: Sequence[Order]) -> Orders:
    return Orders(each=[order_as_json(each) for each in orders])

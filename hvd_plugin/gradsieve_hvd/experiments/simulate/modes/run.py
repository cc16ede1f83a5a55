"""One simulated training: a mode, a cluster and a model, from the start until a loss is reached."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from gradsieve_hvd.server.events import (
    Continue,
    Discard,
    Event,
    Pushed,
    Release,
    Reply,
    Started,
    WakeAt,
    Woke,
)
from gradsieve_hvd.server.node_table import Mode, NodeTable, take_turn

from .perceptron import Array
from .server import Compressors, Weights
from .stragglers import Delays, Scenario
from .tasks import ModeTask


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tuned of an optimizer."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a mode is tried. density: of pushes. horizon: virtual time after which a run is given up."""

    scenario: Scenario
    workers: int
    density: float
    horizon: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to.

    seconds: virtual time to the target, by setting; infinite where it was not reached. batches: of nominal
    size, of all workers, whose gradients had arrived when the run ended. waiting_share: of all workers' time,
    what was not spent on computing. staleness_mean: releases that an applied gradient missed. ended: when the
    run was.
    """

    seconds: list[float]
    batches: float
    waiting_share: float
    staleness_mean: float
    ended: float


@dataclass(frozen=True, slots=True)
class Made:
    """A version: when it was made, and of which pushes, by their numbers, with the releases each missed."""

    time: float
    missed: dict[int, int]


class Run:
    """Plays a mode on a virtual clock.

    Args:
        settings: trained side by side; what workers do and when does not depend on them.
        patience: the run ends at this multiple of the time at which the first setting reached the target.

    pushes, made: gradients that have arrived, and versions; whoever looks at them may empty them.
    """

    def __init__(
        self, task: ModeTask, mode: Mode, cluster: Cluster, settings: Sequence[Setting], seed: int,
        patience: float = 1.0,
    ) -> None:  # fmt: skip
        self._task, self._mode, self._patience = task, mode, patience
        workers = cluster.workers
        self._limit = cluster.horizon
        self._delays = Delays(cluster.scenario, workers, seed, cluster.density)
        self._samples = [np.random.default_rng((seed, rank, 3)) for rank in range(workers)]
        rates, momenta = zip(*((each.learning_rate, each.momentum) for each in settings), strict=True)
        self._weights = Weights(task.model.initial(seed), rates, momenta, workers)
        size = task.model.parameters
        self._compressors = [Compressors(len(settings), size, cluster.density) for _ in range(workers)]
        self._held: list[Array] = [self._weights.values_SN] * workers
        self._gradients: dict[int, Array] = {}
        self._table = NodeTable(workers)
        self._queue: list[tuple[float, int, Event | Pushed]] = []
        self._order = count()
        self._wake: Woke | None = None
        self._judged = task.judged()
        self._last = (0.0, task.model.loss(self._weights.values_SN, *self._judged))
        self._seconds = [math.inf] * len(settings)
        self._computed = self._missed = 0.0
        self._applied = self._pushed = 0
        self._now = 0.0
        self.pushes: list[Pushed] = []
        self.made: list[Made] = []
        self._put(0.0, Started(0.0))

    @property
    def over(self) -> bool:
        """Whether all settings have reached the target, or nothing comes any more before the end."""
        return max(self._seconds) < math.inf or not self._queue or self._queue[0][0] > self._limit

    def change(self, mode: Mode) -> None:
        """Go on in another mode: when all have pushed what they compute, they begin anew with the newest
        weights. Those last pushes are not used.
        """
        computing = [time for time, _, event in self._queue if isinstance(event, Pushed)]
        drained = max(computing, default=self._now)
        self._mode, self._table, self._wake = mode, NodeTable(len(self._held)), None
        self._queue, self._gradients = [], {}
        self._held = [self._weights.values_SN] * len(self._held)
        self._put(drained, Started(drained))

    def play(self, until: float = math.inf) -> Result:
        """Run until all settings have reached the target, or patience or the horizon is at its end; or, to be
        gone on with, to some time.
        """
        now = self._now
        with np.errstate(over="ignore", invalid="ignore"):  # of settings that diverge
            while not self.over and self._queue[0][0] <= until:
                time, _, event = heapq.heappop(self._queue)
                self._now = now = time
                if isinstance(event, Pushed) and event.now != time:
                    self._send(event, time)
                elif not isinstance(event, Woke) or event is self._wake:
                    self._happen(event)
        reached = max(self._seconds) < math.inf
        end = now if reached else max(min(until, self._limit), now)
        batches, missed = self._pushed / self._task.batch, self._missed / max(self._applied, 1)
        return Result(self._seconds, batches, self._waiting(end), missed, now)

    def _waiting(self, end: float) -> float:
        """Return the share of all workers' time that was not spent on computing: of batches that are not done
        at the end, what had begun by then is.
        """
        if not end:
            return 1.0
        left = [
            min(time - end, event.seconds)
            for time, _, event in self._queue
            if isinstance(event, Pushed) and event.now != time and time > end
        ]
        return 1 - (self._computed - sum(left)) / (len(self._held) * end)

    def _happen(self, event: Event) -> None:
        if isinstance(event, Pushed):
            self._gradients[event.number] = self._gradient(event)
            self.pushes.append(event)
            self._pushed += event.samples
        missed = {push.number: self._table.version - push.version for push in self._table.pending.values()}
        if isinstance(event, Pushed):
            missed[event.number] = self._table.version - event.version
        for action in take_turn(self._table, self._mode, event):
            match action:
                case Release():
                    self._weights.release(action.contributions, self._gradients)
                    self._missed += sum(missed[each.number] for each in action.contributions)
                    self._applied += len(action.contributions)
                    numbers = [each.number for each in action.contributions]
                    self.made.append(Made(event.now, {number: missed[number] for number in numbers}))
                    self._judge(event.now)
                case Discard():
                    del self._gradients[action.number]
                case Reply():
                    self._held[action.rank] = self._weights.values_SN
                    self._begin(action.rank, self._delays.reply_arrival(action.rank, event.now))
                case Continue():
                    self._begin(action.rank, self._delays.answer_arrival(action.rank, event.now))
                case WakeAt():
                    self._wake = Woke(action.time)
                    self._put(action.time, self._wake)

    def _begin(self, rank: int, time: float) -> None:
        """Compute a batch: its push is put when it leaves, as others may take its way until then."""
        node = self._table.nodes[rank]
        samples = max(round(self._task.batch * node.share), 1)
        seconds = self._delays.computing(rank, time, samples / self._task.batch)
        self._computed += seconds
        push = Pushed(math.nan, next(self._order), rank, node.version, samples, seconds)
        self._put(time + seconds, push)

    def _send(self, push: Pushed, time: float) -> None:
        arrival = self._delays.push_arrival(push.rank, time)
        arrived = Pushed(arrival, push.number, push.rank, push.version, push.samples, push.seconds)
        self._put(arrival, arrived)

    def _gradient(self, push: Pushed) -> Array:
        indices = self._samples[push.rank].integers(len(self._task.labels), size=push.samples)
        inputs, labels = self._task.samples(indices)
        gradient = self._task.model.gradient_sum(self._held[push.rank], inputs, labels)
        gradient /= np.float32(self._task.batch)
        return self._compressors[push.rank].sent(gradient)

    def _judge(self, now: float) -> None:
        """Note who has reached the target; the loss is looked at once per unit of time, linear between."""
        before, losses_before = self._last
        if now - before < 1 - 1e-9:
            return
        losses = self._task.model.loss(self._weights.values_SN, *self._judged)
        for index, (old, new) in enumerate(zip(losses_before, losses, strict=True)):
            if self._seconds[index] == math.inf and new <= self._task.target:
                part = float((old - self._task.target) / (old - new)) if old > new else 1.0
                self._seconds[index] = before + part * (now - before)
        self._last = (now, losses)
        if min(self._seconds) < math.inf:
            self._limit = min(self._limit, self._patience * min(self._seconds))

    def _put(self, time: float, event: Event) -> None:
        heapq.heappush(self._queue, (time, next(self._order), event))

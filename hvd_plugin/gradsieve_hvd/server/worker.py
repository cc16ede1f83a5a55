"""The worker's side: pushes gradients, waits for the answer, and returns weights of one version."""

from __future__ import annotations

import queue
import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from gradsieve.errors import ExchangeError, GradsieveError

from .letters import (
    Answer,
    AskBatch,
    AskWeights,
    Dealt,
    Failure,
    Hyperparameters,
    Letter,
    Parts,
    Push,
    Stop,
    Weights,
)
from .partition import Partition
from .ranges import Pairs
from .server_thread import ServerThread
from .shard_optimizer import unpacked_state

_LOOK_SECONDS = 0.5
Expected = TypeVar("Expected", Answer, Stop)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Weights of one version. tensors: by number, as `packed_weights` makes them, and whether they are all of
    the tensor's. state: of the optimizer, by number of the tensor, if it was asked for.
    """

    version: int
    tensors: Mapping[int, tuple[Tensor, bool]]
    state: Mapping[int, dict[str, Any]]


class Worker:
    """One rank's worker.

    Args:
        server: this rank's.
        partition: of the tensors.
        timeout: how long nothing may be heard while this worker waits, in seconds.

    version: of the weights that it has. samples_seen: behind the newest version that it was told of, of all
    ranks. pushes: so far. share, staleness, leave, epochs, held_seconds: see `Answer`.
    """

    def __init__(self, server: ServerThread, partition: Partition, timeout: float) -> None:
        self._server, self._partition, self._timeout = server, partition, timeout
        self._arrived: defaultdict[int, dict[int, Weights]] = defaultdict(dict)
        self.version, self.share, self.samples_seen, self.pushes = 0, 1.0, 0, 0
        self.staleness, self.leave, self.held_seconds = 0.0, False, 0.0
        self.epochs: list[tuple[int, Pairs]] = []
        weakref.finalize(self, server.leave_soon).atexit = False  # at exit the server's own hook knows more

    def push(
        self,
        payloads: Mapping[int, Tensor],
        samples: int,
        seconds: float,
        hyperparameters: Hyperparameters,
        *,
        encoding_seconds: float = 0.0,
        dealt: bool = False,
        raw: Collection[int] = (),
    ) -> Fresh | None:
        """Push a gradient and wait for the answer; return new weights, or None to go on with these.

        payloads: encoded gradients by number of the tensor; a tensor without one is left out.
        samples, seconds, encoding_seconds: see `Push`.
        dealt: whether the batch is the next one that `next_batch` has returned.
        raw: of which tensors the gradient is not encoded; see `Parts`.

        Raises:
            GradsieveError: training has failed, here or on another rank; nothing was returned.
        """
        self.raise_if_failed()
        number = self.pushes * self._server.size + self._server.rank
        for shard in sorted(self._partition.shards):
            tensors = [each for each in self._partition.of_shard(shard) if each in payloads]
            parts = tuple(payloads[each] for each in tensors)
            as_they_are = [each for each in tensors if each in raw]
            self._server.post(Parts(number=number, tensors=tensors, raw=as_they_are, parts=parts), [shard])
        push = Push(
            number=number,
            version=self.version,
            samples=samples,
            seconds=seconds,
            encoding_seconds=encoding_seconds,
            hyperparameters=hyperparameters,
            dealt=dealt,
        )
        self._server.post(push, [0])
        self.pushes += 1
        return self._answered()

    def newest(self, *, with_state: bool) -> Fresh:
        """Return the newest weights, perhaps with the optimizer's state, beside training: `version` stays.

        Raises:
            GradsieveError: see `push`.
        """
        self.raise_if_failed()
        version, share, held = self.version, self.share, self.held_seconds
        self._server.post(AskWeights(with_state=with_state), [0])
        fresh = self._answered()
        assert fresh is not None
        self.version, self.share, self.held_seconds = version, share, held
        return fresh

    def ask_batch(self, iteration: int, turn: int, epoch: int, data: dict[str, Any]) -> None:
        """Ask for one more batch; see `SampleLedger.deal`.

        Raises:
            GradsieveError: see `push`.
        """
        self.raise_if_failed()
        self._server.post(AskBatch(iteration=iteration, turn=turn, epoch=epoch, data=data), [0])

    def next_batch(self, iteration: int) -> Pairs:
        """Return the next batch of an iteration that was asked for; empty at the epoch's end.

        Raises:
            GradsieveError: see `push`.
        """
        while True:
            _, letter = self._next("a batch of rank 0, which deals", self._server.batches)
            assert isinstance(letter, Dealt), "others go into the other box"
            if letter.iteration == iteration:  # else it was asked for by one that was left
                return tuple((start, stop) for start, stop in letter.places)

    def finish(self) -> Fresh:
        """Leave, wait until all workers have left, and return the last version.

        Raises:
            GradsieveError: see `push`.
        """
        self.raise_if_failed()
        self._server.leave()
        stop = self._expect(Stop)
        fresh = self._weights(stop.version)
        self.samples_seen = stop.samples
        self._server.join()
        return fresh

    def fail(self, error: GradsieveError) -> None:
        """See `ServerThread.fail`."""
        self._server.fail(error)

    def raise_if_failed(self) -> None:
        """Raise what has ended training, if anything has.

        Raises:
            GradsieveError: it, the same on every rank.
        """
        if self._server.failure is not None:
            raise self._server.failure

    def _answered(self) -> Fresh | None:
        answer = self._expect(Answer)
        self.share, self.samples_seen, self.held_seconds = answer.share, answer.samples, answer.held_seconds
        self.staleness, self.leave, self.epochs = answer.staleness, answer.leave, answer.epochs
        return None if answer.version is None else self._weights(answer.version)

    def _expect(self, kind: type[Expected]) -> Expected:
        while True:
            source, letter = self._next("an answer of rank 0, which decides")
            if isinstance(letter, kind):
                return letter
            self._keep(source, letter)

    def _weights(self, version: int) -> Fresh:
        arrived = self._arrived[version]
        while missing := self._partition.shards - arrived.keys():
            missed = ", ".join(map(str, sorted(missing)))
            self._keep(*self._next(f"the weights of version {version} that ranks {missed} keep"))
        del self._arrived[version]
        self.version = version
        return Fresh(
            version,
            {
                number: (part, whole)
                for shard, weights in arrived.items()
                for number, part, whole in zip(
                    self._partition.of_shard(shard), weights.parts, weights.whole, strict=False
                )
            },
            {
                number: each
                for weights in arrived.values()
                if weights.with_state
                for number, each in unpacked_state(weights.parts[-1]).items()
            },
        )

    def _keep(self, source: int, letter: Letter) -> None:
        if not isinstance(letter, Weights):
            kind = type(letter).__name__
            error = ExchangeError(f"rank {self._server.rank}: nobody waits for a {kind} of rank {source}")
            self.fail(error)
            self.raise_if_failed()
            return
        self._arrived[letter.version][source] = letter

    def _next(self, what: str, box: queue.Queue[tuple[int, Letter]] | None = None) -> tuple[int, Letter]:
        """Return the next letter for the worker, or raise at the end of training or of patience."""
        box = self._server.inbox if box is None else box
        while True:
            try:
                source, letter = box.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._server.silence() > self._timeout:
                    self.fail(self._timed_out(what))
                self.raise_if_failed()
                continue
            if isinstance(letter, Failure):
                self.raise_if_failed()
            return source, letter

    def _timed_out(self, what: str) -> ExchangeError:
        return ExchangeError(
            f"rank {self._server.rank}: {what} did not come, and nothing was heard for {self._timeout:g} s: "
            "a rank has died, has left the training loop or is slower than that (raise timeout_seconds)"
        )

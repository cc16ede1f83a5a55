"""The thread of a rank that serves: it reads the rank's letters, and has them answered.

It serves on when this rank's training has ended, until that of all ranks has.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence

import torch

import gradsieve.errors as errors
from gradsieve.errors import ExchangeError, GradsieveError
from gradsieve_hvd.transport.mail import Mail
from gradsieve_hvd.transport.running_clock import RUNNING

from .decision_maker import DecisionMaker
from .letters import (
    Answer,
    AskBatch,
    AskWeights,
    Count,
    Dealt,
    Failure,
    Leave,
    Letter,
    Orders,
    Parts,
    Push,
    Stop,
    Weights,
    copied,
    order_from_json,
    pack,
    unpack,
)
from .shard import Shard

_LOOK_SECONDS = 0.5
_FAREWELL_SECONDS = 5.0
_OWN = torch.zeros(1, dtype=torch.uint8, device="cpu")
"""Stands for a letter to the rank itself, which is handed over as it is."""
_COUNT_SECONDS = 5.0
"""Silence after which ranks tell each other how many letters they have sent: a lost one is found out long
before anybody's patience ends."""


class ServerThread:
    """Serves one rank's shard, on rank 0 the decision-maker, too, and hands the worker what is for it.

    Args:
        mail: for this thread alone to collect.
        shard: of this rank.
        decision_maker: on rank 0; None on others.
        shards: the ranks whose shards keep something.
        timeout: how long nothing may be heard from anybody, in seconds, while somebody waits.

    inbox: answers, weights and the end, with their senders, for the worker; batches: those that it is dealt,
    for its loader, which may run in a thread of its own, and the end. failure: what ended training;
    None while it goes on. Once there is one, no weight changes any more.
    """

    def __init__(
        self,
        mail: Mail,
        shard: Shard,
        decision_maker: DecisionMaker | None,
        shards: Collection[int],
        timeout: float,
    ) -> None:
        self.rank, self.size = mail.rank, mail.size
        self.inbox: queue.Queue[tuple[int, Letter]] = queue.Queue()
        self.batches: queue.Queue[tuple[int, Letter]] = queue.Queue()
        self.failure: GradsieveError | None = None
        self.shard = shard
        self._mail, self._decision_maker, self._timeout = mail, decision_maker, timeout
        self._heard = RUNNING.seconds()
        self._stopped, self._awaited = False, set(shards)  # those whose last weights are still to come
        self._leaving = threading.Lock()
        self._posting, self._failing = threading.Lock(), threading.Lock()
        self._posted, self._received = Counter[int](), Counter[int]()  # letters, by the other rank
        self._own: deque[Letter] = deque()  # to this rank, in the order of its mail
        self._counted = self._heard
        self._left = self._wants_to_leave = False
        self._thread = threading.Thread(target=self._run, name="gradsieve-server", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    @property
    def decision_maker(self) -> DecisionMaker | None:
        """On rank 0; None on others. It belongs to this thread: others read it, and set ``ends``."""
        return self._decision_maker

    def post(self, letter: Letter, to: Sequence[int]) -> None:
        """Send a letter to ranks; see `Mail.post`."""
        packed = pack(letter) if any(rank != self.rank for rank in to) else _OWN
        own = copied(letter) if self.rank in to else None
        for rank in to:
            # Counts must stand behind all letters that they count.
            with self._posting:
                if rank == self.rank and own is not None:
                    self._own.append(own)
                self._mail.post(_OWN if rank == self.rank else packed, rank)
                self._posted[rank] += 1

    def silence(self) -> float:
        """Return for how many seconds of this process nothing has been heard from anybody."""
        return RUNNING.seconds() - self._heard

    def leave(self) -> None:
        """Say that this rank will push no more; a second time, nothing."""
        with self._leaving:
            if not self._left and self.failure is None:
                self.post(Leave(), [0])
            self._left = True

    def leave_soon(self) -> None:
        """Have the thread say so: for a finalizer, which may run within any call of any thread."""
        self._wants_to_leave = True

    def fail(self, error: GradsieveError) -> None:
        """End training on all ranks by an error, unless it has ended. Callable from any thread."""
        with self._failing:
            if self.failure is not None or self._stopped:
                return
            self.failure = error
            says = Failure(error=type(error).__name__, says=str(error))
            try:
                self.post(says, range(self.size))
            except GradsieveError:  # without a network each rank finds out by itself
                self._wake_worker(says)

    def join(self) -> None:
        """Wait until all ranks have left, and every letter.

        Raises:
            ExchangeError: nothing was heard for longer than the time-out.
        """
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self.silence() > self._timeout:
                raise ExchangeError(
                    f"rank {self.rank} has finished, and nothing was heard from the others for "
                    f"{self._timeout:g} s"
                )

    def _run(self) -> None:
        try:
            while not (self._stopped and self.shard.idle and not self._awaited) and self._serve():
                pass
        except Exception as error:  # noqa: BLE001 - all ranks get it
            known = error if isinstance(error, GradsieveError) else None
            self.fail(known or ExchangeError(f"rank {self.rank}: the server has failed: {error!r}"))
        if self.failure is not None:
            self._wake_worker(_failure_letter(self.failure))
        with self._failing:  # until a thread that fails has posted that: others would wait for it in vain
            pass
        self._mail.close(_FAREWELL_SECONDS)
        atexit.unregister(self._at_exit)

    def _serve(self) -> bool:
        """Read a letter, or let a time pass that the mode waits for; return whether training goes on."""
        if self._wants_to_leave:
            self.leave()
        collected = self._mail.collect(self._seconds_to_wait())
        if collected is not None:
            source, message = collected
            letter = self._own.popleft() if source == self.rank else self._unpacked(source, message)
            if isinstance(letter, Count):
                self._compare(source, letter.letters)
            else:
                self._received[source] += 1
                self._heard = RUNNING.seconds()
                self._read(source, letter)
        self._count()
        maker = self._decision_maker
        if maker is not None and maker.wake_at is not None and time.monotonic() >= maker.wake_at:
            self._post_all(maker.wake(time.monotonic()))
        return self.failure is None

    def _count(self) -> None:
        """In a long silence, tell the others how many letters they have been sent. That is no sign of life:
        patience goes by other letters.
        """
        now = RUNNING.seconds()
        if self._stopped or now - max(self._heard, self._counted) < _COUNT_SECONDS:
            return
        self._counted = now
        for rank in range(self.size):
            if rank != self.rank:
                with self._posting:
                    self._mail.post(pack(Count(letters=self._posted[rank])), rank)

    def _compare(self, source: int, letters: int) -> None:
        if letters != self._received[source]:
            raise ExchangeError(
                f"rank {self.rank}: rank {source} has sent {letters} letters and {self._received[source]} "
                "have come, although a later one has: what carries them has lost some. Start again from a "
                "checkpoint, over another transport if it happens again"
            )

    def _seconds_to_wait(self) -> float:
        maker = self._decision_maker
        if maker is None or maker.wake_at is None:
            return _LOOK_SECONDS
        return min(max(maker.wake_at - time.monotonic(), 0.0), _LOOK_SECONDS)

    def _unpacked(self, source: int, message: torch.Tensor) -> Letter:
        try:
            return unpack(message)
        except errors.PayloadError as error:
            raise errors.PayloadError(f"rank {self.rank}: letter from rank {source}: {error}") from error

    def _read(self, source: int, letter: Letter) -> None:
        match letter:
            case Push() | Leave() | AskWeights() | AskBatch():
                assert self._decision_maker is not None, f"rank {source} takes rank {self.rank} for rank 0"
                self._post_all(self._decision_maker.hear(source, letter, time.monotonic()))
            case Parts():
                self.shard.take(letter)
                self._execute()
            case Orders(each=orders):
                self.shard.order([order_from_json(each) for each in orders])
                self._execute()
            case Failure(error=name, says=says):
                self.failure = self.failure or _error_named(name)(says)
            case Answer():
                self.inbox.put((source, letter))
            case Dealt():
                self.batches.put((source, letter))
            case Weights(last=last):
                self._awaited -= {source} if last else set()
                self.inbox.put((source, letter))
            case Stop():
                self._stopped = True
                self.inbox.put((source, letter))

    def _wake_worker(self, says: Failure) -> None:
        for box in (self.inbox, self.batches):
            box.put((self.rank, says))

    def _execute(self) -> None:
        for ranks, weights in self.shard.execute():
            self.post(weights, ranks)

    def _post_all(self, outgoing: Sequence[tuple[Sequence[int], Letter]]) -> None:
        for ranks, letter in outgoing:
            self.post(letter, ranks)

    def _at_exit(self) -> None:
        """Serve until all ranks have left; a rank that ends by an exception ends training."""
        uncaught = getattr(sys, "last_value", None)
        if uncaught is not None and not self._left:
            self.fail(ExchangeError(f"rank {self.rank} has ended by {uncaught!r}"))
        self.leave()
        self.join()


def _failure_letter(error: GradsieveError) -> Failure:
    return Failure(error=type(error).__name__, says=str(error))


def _error_named(name: str) -> type[GradsieveError]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, GradsieveError) else ExchangeError

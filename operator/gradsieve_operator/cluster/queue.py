"""Which jobs to look at next: each at most once at a time, and again if something happened meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

Key = tuple[str, str]
"""Namespace and name of a job."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_BURST_SECONDS = 0.05
_TURNS, _TURN_SECONDS = 4, 0.05
_EXPECTED_SECONDS = 3.0
"""What is to be looked at again so soon is in the midst of something that has begun."""

_LATE_SECONDS, _OVERDUE_SECONDS = 1.0, 30.0
"""News and what is expected, or a re-check, that have waited for so long take turns with what comes before
them: a job may have lost what nobody has told of. A thousand re-checks are due within the time from one call
to a coordinator to the next; where that is more than can be done, they must not take half of what can."""

_log = logging.getLogger(__name__)


class WorkQueue:
    """Calls ``work`` for keys that were added, at the latest when their time has come.

    What somebody has asked for comes first, then what has happened, then what is expected to happen in a
    moment, and last what is only looked at again: a changed job waits neither for others' pods that come
    and go nor for re-checks of a thousand others, nor does one whose start goes on.

    Args:
        work: does what is to be done for a key and returns after how many seconds it wants to be called again
            even if nothing happens; None for never. When it raises, it is called again after a pause that
            doubles each time.
        workers: how many keys are worked on at the same time, those that are `parked` not counted.
    """

    def __init__(self, work: Callable[[Key], Awaitable[float | None]], workers: int = 16) -> None:
        self._work, self._workers, self._most = work, asyncio.Semaphore(workers), workers
        # In the order in which they came.
        self._asked: dict[Key, None] = {}
        self._news: dict[Key, None] = {}
        self._expected: dict[Key, None] = {}
        self._rechecks: dict[Key, None] = {}
        self._arrived = asyncio.Event()
        self._after_overdue = False
        self._busy: set[Key] = set()
        self._again: dict[Key, bool] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._soon: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._since: dict[Key, float] = {}

    def add(self, key: Key, *, asked: bool = False) -> None:
        """Have ``key`` worked on as soon as a worker is free.

        Args:
            key: that something has happened to.
            asked: whether somebody waits for what comes of it, as who has changed a job's spec does.
        """
        self._cancel_timer(key)
        if key in self._busy:
            self._again[key] = asked or self._again.get(key, False)
            return
        asked = asked or key in self._asked
        for line in (
            (self._news, self._expected, self._rechecks) if asked else (self._expected, self._rechecks)
        ):
            line.pop(key, None)
        self._put(key, self._asked if asked else self._news)

    def soon(self, key: Key) -> None:
        """Have ``key`` worked on after what mostly happens in bursts: once for the whole burst."""
        if key not in self._soon:
            self._soon[key] = asyncio.get_running_loop().call_later(_BURST_SECONDS, self._end_burst, key)

    def recheck(self, key: Key) -> None:
        """Have ``key`` worked on once nothing else is to be done, and in some seconds in any case."""
        if not any(key in each for each in (self._busy, self._asked, self._news, self._expected)):
            self._cancel_timer(key)
            self._put(key, self._rechecks)

    async def recheck_all(self, keys: Iterable[Key]) -> None:
        """Have ``keys`` worked on one after the other, so that workers are free for news.

        One in 50 ms; where half of the workers are busy, still five in a second: the first look at a job of
        an earlier leader costs a whole TLS handshake, its Secrets and two lists.
        """
        for key in keys:
            self.recheck(key)
            for _ in range(_TURNS):
                await asyncio.sleep(_TURN_SECONDS)
                if 2 * (len(self._busy) + self.depth()) < self._most:
                    break

    def hasten(self) -> None:
        """Have those worked on again at which ``work`` has failed: what it failed by may be over.

        Their pauses begin anew. Where several things end one after the other, as watches do, those that fail
        meanwhile would else wait for a minute.
        """
        for key in self._failures:
            self._failures[key] = 0
            self.recheck(key)

    @contextlib.asynccontextmanager
    async def parked(self) -> AsyncIterator[None]:
        """Let another key be worked on while ``work`` waits for what may not answer; its own stays busy."""
        self._workers.release()
        try:
            yield
        finally:
            await self._workers.acquire()

    def behind(self) -> float:
        """Return for how many seconds the key that has waited longest has not been worked on to the end."""
        return time.monotonic() - min(self._since.values(), default=time.monotonic())

    def depth(self) -> int:
        """Return how many keys are due and not worked on yet."""
        return sum(map(len, (self._asked, self._news, self._expected, self._rechecks)))

    def crowded(self) -> bool:
        """Whether more keys are due than are worked on at a time."""
        return self.depth() > self._most

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._arrived.wait()
                    await self._workers.acquire()
                    group.create_task(self._serve(self._take()))
        finally:
            for timer in (*self._timers.values(), *self._soon.values()):
                timer.cancel()

    def _end_burst(self, key: Key) -> None:
        del self._soon[key]
        self.add(key)

    def _put(self, key: Key, line: dict[Key, None]) -> None:
        self._since.setdefault(key, time.monotonic())
        line.setdefault(key)
        self._arrived.set()

    def _take(self) -> Key:
        """Return what comes next, which is busy from now on."""
        line = self._asked or self._news or self._expected or self._rechecks
        overdue = self._overdue()
        if overdue is not None and not self._after_overdue:
            line = overdue
        # In turn: where all re-checks are overdue, a new job must not wait for them either.
        self._after_overdue = line is overdue
        key = next(iter(line))
        del line[key]
        self._busy.add(key)
        # What has happened so far is seen now.
        if (timer := self._soon.pop(key, None)) is not None:
            timer.cancel()
        if not self.depth():
            self._arrived.clear()
        return key

    def _overdue(self) -> dict[Key, None] | None:
        """Return the line whose first key is furthest beyond the time that it may wait; None if none is."""
        now, found, furthest = time.monotonic(), None, 1.0
        lines = (
            (self._news, _LATE_SECONDS),
            (self._expected, _LATE_SECONDS),
            (self._rechecks, _OVERDUE_SECONDS),
        )
        for line, seconds in lines:
            first = next(iter(line), None)
            waited = 0.0 if first is None else (now - self._since[first]) / seconds
            if waited >= furthest:
                found, furthest = line, waited
        return found

    def _again_due(self, key: Key, seconds: float) -> None:
        """Have ``key`` worked on again after it asked for that ``seconds`` ago."""
        self._cancel_timer(key)
        self._put(key, self._expected if seconds <= _EXPECTED_SECONDS else self._rechecks)

    async def _serve(self, key: Key) -> None:
        try:
            again = await self._attempt(key)
        finally:
            self._workers.release()
        self._busy.discard(key)
        self._since.pop(key, None)
        if key in self._again:
            self.add(key, asked=self._again.pop(key))
        elif again is not None:
            self._cancel_timer(key)
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(max(again, 0.0), self._again_due, key, again)

    async def _attempt(self, key: Key) -> float | None:
        try:
            again = await self._work(key)
        except Exception as error:  # noqa: BLE001 - one job's trouble must not stop the others
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
            _log.warning("%s/%s: %s; again in %.1f s", *key, error, pause, exc_info=not str(error))
            return pause
        self._failures.pop(key, None)
        return again

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

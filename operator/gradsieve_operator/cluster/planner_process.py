"""Planning in a process of its own: neither the event loop nor Python's lock is held meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterable

from gradsieve_operator.cluster.planner_messages import LENGTH, Asker, Plans
from gradsieve_operator.placement import Cluster, Gang

LONGEST_SECONDS = 120.0
"""A process that has not answered by then is replaced."""

_PAUSE = 1.0
_FAILING = 3
"""Times in a row that it fails before that is more than an accident."""

_PROGRAM = "gradsieve_operator.cluster.planner_program"
_log = logging.getLogger(__name__)


class PlannerProcess:
    """The operator's end of it. The process is started when it is needed, and replaced when it dies.

    Args:
        fails: called when it has failed several times in a row.

    Attributes:
        took: seconds from the last question to its answer.
        trouble: that it fails again and again, in a sentence; empty while it does not.
    """

    def __init__(self, fails: Callable[[], None] = lambda: None) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._asked_at: float | None = None
        self._asker = Asker()
        self.took, self.trouble = 0.0, ""
        self._fails = fails

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is none."""
        return None if self._process is None else self._process.pid

    def behind(self) -> float:
        """Return for how many seconds it has owed an answer; 0 when it owes none."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def plan(self, cluster: Cluster, waiting: Iterable[Gang]) -> Plans:
        """Return the plans for all gangs, however often the process dies meanwhile. One call at a time."""
        self._asked_at = began = time.monotonic()
        question = self._asker.question(cluster, waiting)
        failures = 0
        while True:
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    answer = await self._ask(question)
            except (OSError, EOFError) as error:
                # TimeoutError is one of them.
                _log.warning("the planner's process has failed: %r; another one is started", error)
                failures += 1
                if failures == _FAILING:
                    self.trouble = f"the planner's process fails again and again: {error!r}"
                    self._fails()
            else:
                self._asked_at, self.took, self.trouble = None, time.monotonic() - began, ""
                return answer
            await self.stop()
            await asyncio.sleep(_PAUSE)

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, question: bytes) -> Plans:
        if self._process is None:
            # -P: what lies in the working directory is no part of the operator.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None
        assert sink is not None
        sink.write(question)
        await sink.drain()
        (length,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
        # Our own process has written it.
        answer: Plans = pickle.loads(await source.readexactly(length))  # noqa: S301
        return answer

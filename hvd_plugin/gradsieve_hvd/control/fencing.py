"""Incarnations on their way out: nothing is started in their place while their ranks may still run."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from gradsieve_hvd.control.agents import Agents
from gradsieve_hvd.control.contract import CLOSE_FENCED
from gradsieve_hvd.control.fencing_timeouts import FencingTimeouts
from gradsieve_hvd.control.messages import Incarnation

END_SECONDS = 15.0
"""How long agents may take to end what they run; they kill after 5 seconds."""

_log = logging.getLogger("gradsieve.coordinator")


class Fencing:
    """Who is being fenced, and who has fallen silent.

    Args:
        agents: reach the hosts.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._timeouts = FencingTimeouts()
        self._heard = asyncio.Event()
        self._fencing: set[asyncio.Task[None]] = set()

    def silent(self, incarnation: Incarnation, heard: float) -> None:
        """An incarnation that may run ranks does not answer any more; its last word came at ``heard``."""
        self._timeouts.silent(incarnation, heard)

    def heard(self, incarnation: Incarnation) -> None:
        """It is back."""
        self._timeouts.heard(incarnation)
        self._heard.set()

    def fence(self, incarnation: Incarnation) -> None:
        """Have a connected incarnation end its ranks and itself; returns at once."""
        task = asyncio.create_task(self._fence(incarnation))
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)

    async def over(self) -> None:
        """Return when none of them can run ranks any more."""
        if self._fencing:
            await asyncio.wait(set(self._fencing))
        if hosts := self._timeouts.hosts(time.monotonic()):
            _log.warning("ranks may still run on %s, which is silent: waiting", ", ".join(hosts[:10]))
        while (seconds := self._timeouts.seconds(time.monotonic())) > 0.0:
            self._heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._heard.wait()

    async def _fence(self, incarnation: Incarnation) -> None:
        connection = self._agents.connection(incarnation)
        if connection is None:
            return
        _log.warning("host %s: incarnation %s is fenced", incarnation.host, incarnation.uid)
        for silent in await self._agents.end([incarnation], END_SECONDS):
            self.silent(silent, connection.heard)
        self._agents.forget(incarnation)
        await connection.send({"type": "fence", "reason": "the roster names another incarnation"})
        await connection.close(CLOSE_FENCED, "fenced")

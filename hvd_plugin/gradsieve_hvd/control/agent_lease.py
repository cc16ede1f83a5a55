"""Until when an agent lets ranks of ``mpirun`` run: the other half of the coordinator's leases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gradsieve_hvd.control.contract import FORSAKEN_SECONDS, SILENCE_SECONDS

_log = logging.getLogger("gradsieve.agent")


class AgentLease:
    """Calls ``forsake`` when the coordinator may have given this host up, or has gone.

    Args:
        forsake: ends what makes no sense without a coordinator.
    """

    def __init__(self, forsake: Callable[[], None]) -> None:
        self._forsake = forsake
        self._timer: asyncio.TimerHandle | None = None

    def heard_at(self, moment: float) -> None:
        """The coordinator has heard of this agent at ``moment`` (monotonic clock) or later."""
        self._end_at(moment + SILENCE_SECONDS + FORSAKEN_SECONDS)

    def disconnected(self) -> None:
        """The connection to the coordinator has ended."""
        soon = time.monotonic() + FORSAKEN_SECONDS
        self._end_at(soon if self._timer is None else min(soon, self._timer.when()))

    def _end_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._over)

    def _over(self) -> None:
        _log.error("no coordinator any more: ending what mpirun has started here")
        self._forsake()

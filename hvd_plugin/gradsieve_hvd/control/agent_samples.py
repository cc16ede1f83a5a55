"""What the ranks of a host measure of themselves, on its way to the coordinator through the host's agent."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gradsieve_hvd.control.contract import RANK_SAMPLES

_GATHER_SECONDS: Final = 0.2
"""All ranks of a host measure at about the same time, and travel in one message."""

_PAUSE_SECONDS: Final = 1.0
"""Between two messages at least, whatever is handed over here; ranks have something every other second."""

_REFUSED_SECONDS: Final = 60.0
_MOST_BYTES: Final = 2048
_log = logging.getLogger("gradsieve.agent")

Put = Callable[[dict[str, Any]], None]


class AgentSamples(asyncio.DatagramProtocol):
    """Receives ranks' samples on a unix socket, and hands on the last one of each.

    The socket lies below a folder that only this user can enter. What comes in is no more than an object with
    a rank here: the coordinator reads it with suspicion.

    Args:
        most: how many ranks there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: dict[int, dict[str, Any]] = {}
        self._put: Put | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, path: Path) -> None:
        """Begin to receive. Where the path is too long for a socket that is said, and nothing is received."""
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, family=socket.AF_UNIX, local_addr=str(path)
            )
        except OSError as error:
            _log.warning(
                "ranks cannot tell what they measure: no socket at %s (%s): set TMPDIR to a short path",
                path,
                error,
            )

    def close(self) -> None:
        """Receive no longer."""
        self.hold()
        if self._transport is not None:
            self._transport.close()

    def hand_to(self, put: Put) -> None:
        """A coordinator is there that takes samples: ``put`` has what it gets."""
        self._put, self._not_before = put, 0.0

    def hold(self) -> None:
        """There is none: samples of now are of no use later."""
        self._put = None
        self._newest.clear()

    def refused(self, reason: str) -> None:
        """The coordinator has refused what it got; the same again would be refused as well."""
        _log.warning("the coordinator refuses what ranks here measure: %s", reason)
        self._not_before = asyncio.get_running_loop().time() + _REFUSED_SECONDS

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ARG002 - asyncio's signature
        """A rank has told something."""
        sample = _sample(data)
        if sample is None or self._put is None:
            return
        self._newest.pop(sample["rank"], None)
        self._newest[sample["rank"]] = sample
        if len(self._newest) > self._most:
            del self._newest[next(iter(self._newest))]
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + _GATHER_SECONDS, self._not_before), self._hand_on)

    def _hand_on(self) -> None:
        self._timer = None
        if self._put is not None and self._newest:
            self._put({"type": RANK_SAMPLES, "ranks": list(self._newest.values())})
        self._newest.clear()
        self._not_before = asyncio.get_running_loop().time() + _PAUSE_SECONDS


def _sample(data: bytes) -> dict[str, Any] | None:
    """Return what a rank has told; None for anything else."""
    try:
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("rank")) is int else None

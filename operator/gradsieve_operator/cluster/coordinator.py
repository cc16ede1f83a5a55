"""Calls to a job's coordinator over mutual TLS, straight to its pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from gradsieve_operator import contract
from gradsieve_operator.cluster.calls import Calls
from gradsieve_operator.cluster.coordinator_status import read_status
from gradsieve_operator.cluster.tls import JobContext
from gradsieve_operator.decide import CoordinatorStatus
from gradsieve_operator.errors import OperatorError, SpecError
from gradsieve_operator.foreign_text import one_line

_CALL_SECONDS = 5.0
_CONNECT_SECONDS = 1.5
"""A coordinator that cannot be reached must not hold up what is to be done about it; one lost packet may."""

_STOP_SECONDS = 22.0
_MOST_BYTES = 2 << 20
"""A longer answer is not read. A coordinator takes samples of at most 1 MiB; many jobs are asked at once, and
what JSON stands for may take twenty times its length: one answer at a time is decoded."""


class CoordinatorError(OperatorError):
    """A coordinator did not answer, or did not answer as one."""


class CoordinatorRefused(CoordinatorError):
    """It has understood a call and will not do it: the same call again will end the same."""


class CoordinatorSilent(CoordinatorError):
    """A coordinator did not answer at all."""


class Coordinator:
    """One coordinator.

    Args:
        calls: what its calls share with those to others.
        address: of its pod.
        context: with the operator's certificate for that job.
        silent: whether it has left the last call without an answer.
        quiet: whether nothing is to be expected but that it is asked: then no connection is kept for more.
    """

    def __init__(
        self, calls: Calls, address: str, context: JobContext, *, silent: bool = False, quiet: bool = False
    ) -> None:
        host = f"[{address}]" if ":" in address else address
        self._url = f"https://{host}:{contract.COORDINATOR_PORT}"
        self._calls, self._context, self._silent = calls, context, silent
        self._quiet, self._address = quiet, address

    async def status(self) -> CoordinatorStatus:
        """Return what it says of itself."""
        found = await self._call("GET", contract.PATH_STATUS)
        try:
            return read_status(found)
        except SpecError as error:
            raise CoordinatorError(f"GET {contract.PATH_STATUS}: {error}") from error

    async def put_roster(self, roster: Mapping[str, Any]) -> None:
        """Tell it who takes part."""
        await self._call("PUT", contract.PATH_ROSTER, roster)

    async def put_plan(self, plan: Mapping[str, Any]) -> None:
        """Tell it how ranks should compress."""
        await self._call("PUT", contract.PATH_PLAN, plan)

    async def stop(self, reason: str) -> None:
        """Ask it to end the ranks; returns when they have ended."""
        await self._call("POST", contract.PATH_STOP, {"reason": reason}, _STOP_SECONDS)

    async def _call(
        self, method: str, where: str, body: Mapping[str, Any] | None = None, seconds: float = _CALL_SECONDS
    ) -> dict[str, Any]:
        try:
            async with self._calls.turn(slow=self._silent or seconds > _CALL_SECONDS):
                text = await self._answer(method, where, body, seconds)
            found = json.loads(text)
        except (aiohttp.ClientError, OSError) as error:
            raise CoordinatorSilent(f"{method} {where}: {str(error) or type(error).__name__}") from error
        except (ValueError, RecursionError) as error:
            raise CoordinatorError(f"{method} {where}: {str(error) or type(error).__name__}") from error
        if not isinstance(found, dict):
            raise CoordinatorError(f"{method} {where}: the answer is no object")
        return found

    async def _answer(self, method: str, where: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        async with self._calls.session(self._address, quiet=self._quiet).request(
            method,
            self._url + where,
            json=body,
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            ssl=self._context,
            server_hostname=contract.COORDINATOR_HOST,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                said = one_line((await answer.content.read(1000)).decode(errors="replace"))
                kind = CoordinatorRefused if 400 <= answer.status < 500 else CoordinatorError
                raise kind(f"{method} {where}: status {answer.status}: {said}")
            found = await _bounded(answer.content)
            self._context.keep_session()
            return found


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """Return all of an answer.

    Raises:
        CoordinatorError: it is too long; the rest is not read.
    """
    read = bytearray()
    async for part in content.iter_any():
        read += part
        if len(read) > _MOST_BYTES:
            raise CoordinatorError(f"the answer has more than {_MOST_BYTES} bytes")
    return bytes(read)

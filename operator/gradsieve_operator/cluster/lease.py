"""Which of several replicas acts: the one that holds a Lease."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import time
from typing import Any

from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.errors import ApiError

DURATION_SECONDS = 15
"""A holder that has not renewed for so long may be replaced."""

_RENEW_SECONDS, _RETRY_SECONDS = 4.0, 1.0
"""From one renewal's begin to the next; after one that failed. The former is the most that one takes."""

_GIVE_UP_SECONDS = 10.0
"""A holder stops so long after it began its last renewal, whether the server fails or the network hangs:
others count from when they saw that renewal, which was later, and to more."""

_LEASES = "coordination.k8s.io/v1"
_log = logging.getLogger(__name__)


def awake_or_not() -> float:
    """Return seconds that only grow, also while the machine is suspended.

    CLOCK_MONOTONIC stands still then, so that a hibernated node would wake up as a leader. No clock of its
    own tells a virtual machine that its host has stopped it: what it sends afterwards is caught by the
    versions of what it writes, and by `decide.surplus`.
    """
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME is Linux's; elsewhere CLOCK_MONOTONIC is the next best."""


class LeaseLost(Exception):
    """Another replica may act: ours must not any more."""


class Lease:
    """Leadership by a Lease object.

    Args:
        api: the server.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this replica.
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self._api, self._identity = api, identity
        self._collection = path(_LEASES, "leases", namespace)
        self._where = path(_LEASES, "leases", namespace, name)
        self._empty: dict[str, Any] = {
            "apiVersion": _LEASES,
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {},
        }
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._renewed = 0.0
        self._heard = self._stamp = -math.inf

    @property
    def silence(self) -> float:
        """For how many seconds the server has not answered; infinite before its first answer."""
        return _now() - self._heard

    def held_lately(self) -> bool:
        """Whether no other replica can act yet, by a renewal that began a moment ago: no request is made."""
        return awake_or_not() - self._stamp < _GIVE_UP_SECONDS

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        held = await self._renew(_RENEW_SECONDS)
        while not held:
            await asyncio.sleep(_RETRY_SECONDS)
            held = await self._renew(_RENEW_SECONDS)
        _log.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            LeaseLost: another replica may act from now on.
        """
        held: bool | None = True
        while True:
            pause = self._renewed + _RENEW_SECONDS - _now() if held else _RETRY_SECONDS
            await asyncio.sleep(min(pause, self._left()))
            held = await self._renew(min(_RENEW_SECONDS, self._left()))
            if held is False or self._left() <= 0:
                raise LeaseLost

    async def release(self) -> None:
        """Let another replica begin at once."""
        lease = await self._api.find(self._where)
        if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"].update(holderIdentity="", leaseDurationSeconds=1)
            await self._api.replace(self._where, lease)

    def _left(self) -> float:
        """Return the seconds until a holder gives up."""
        return self._renewed + _GIVE_UP_SECONDS - _now()

    async def _renew(self, seconds: float) -> bool | None:
        """Take or renew the Lease; None when that was not done in time, so that nobody knows."""
        began, stamp = _now(), awake_or_not()
        try:
            async with asyncio.timeout(seconds):
                held = await self._attempt()
        except TimeoutError:
            _log.warning("lease: no answer within %.1f s", seconds)
            return None
        if held:
            self._renewed, self._stamp = began, stamp
        return held

    async def _attempt(self) -> bool | None:
        """Take or renew the Lease; None when the server does not answer, so that nobody knows."""
        try:
            lease = await self._api.find(self._where)
            self._heard = _now()
            new = lease is None
            lease = self._empty if lease is None else lease
            if not self._free(lease["spec"]):
                return False
            body = {**lease, "spec": self._claim(lease["spec"])}
            # The resourceVersion in it makes the server refuse the slower one of two.
            await (self._api.create(self._collection, body) if new else self._api.replace(self._where, body))
        except ApiError as error:
            if error.status == 409:
                return False
            _log.warning("lease: %s", error)
            return None
        return True

    def _free(self, spec: dict[str, Any]) -> bool:
        """Whether the Lease is ours, nobody's, or was not renewed for its duration by *our* clock."""
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        seen = (holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, _now()
        return _now() - self._seen_at > float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)

    def _claim(self, spec: dict[str, Any]) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        ours = spec.get("holderIdentity") == self._identity
        return {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now,
            "acquireTime": spec.get("acquireTime", now) if ours else now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (not ours),
        }


def _now() -> float:
    """Return the monotonic time that the loop's own waits go by."""
    return asyncio.get_running_loop().time()

"""Which of several replicas acts: the one that holds a Lease."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from typing import Any

from gradsieve_operator.cluster.api import Api, ApiError, path

DURATION_SECONDS = 15
"""A holder that has not renewed for so long may be replaced."""

_RENEW_SECONDS = 4.0
_GIVE_UP_SECONDS = 10.0
"""A holder that could not renew for so long stops, well before another may begin."""

_LEASES = "coordination.k8s.io/v1"
_log = logging.getLogger(__name__)


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
        self._seen_at = time.monotonic()

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        held = await self._attempt()
        while not held:
            await asyncio.sleep(_RENEW_SECONDS / 2)
            held = await self._attempt()
        _log.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            LeaseLost: another replica may act from now on.
        """
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                async with asyncio.timeout(_RENEW_SECONDS):
                    held = await self._attempt()
            except TimeoutError:
                held = None
            if held:
                renewed = time.monotonic()
            elif held is False or time.monotonic() - renewed > _GIVE_UP_SECONDS:
                raise LeaseLost

    async def release(self) -> None:
        """Let another replica begin at once."""
        lease = await self._api.find(self._where)
        if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"].update(holderIdentity="", leaseDurationSeconds=1)
            await self._api.replace(self._where, lease)

    async def _attempt(self) -> bool | None:
        """Take or renew the Lease; None when the server does not answer, so that nobody knows."""
        try:
            lease = await self._api.find(self._where)
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
            self._seen, self._seen_at = seen, time.monotonic()
        return time.monotonic() - self._seen_at > float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)

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

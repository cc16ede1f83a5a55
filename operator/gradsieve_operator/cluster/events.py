"""Kubernetes Events of jobs, one for each transition."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.errors import ApiError
from gradsieve_operator.status.times import written

_COMPONENT = "gradsieve-operator"
_LONGEST = 1024
_MOST_WAITING, _POSTERS = 1000, 4
_log = logging.getLogger(__name__)


_last_moment = 0


def _moment() -> int:
    """Return the time in nanoseconds since the epoch, later each time.

    An Event's times are in seconds. Those of one second are shown in the order of their names, which is that
    of our moments, as it is of client-go's.
    """
    global _last_moment
    _last_moment = max(time.time_ns(), _last_moment + 1)
    return _last_moment


class Events:
    """Posts Events in the background: they inform, and neither they nor their failure hold up any job.

    Args:
        api: the server.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)

    def post(self, job: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
        """Attach an Event to the job with the metadata ``job``, soon."""
        try:
            self._waiting.put_nowait(_event(job, warning=warning, reason=reason, message=message))
        except asyncio.QueueFull:
            _log.warning("%s/%s: no event %s: too many wait", job["namespace"], job["name"], reason)

    async def run(self) -> None:
        """Post until cancelled; what waits then is lost."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_POSTERS):
                group.create_task(self._run())

    async def _run(self) -> None:
        while True:
            event = await self._waiting.get()
            namespace = event["metadata"]["namespace"]
            try:
                await self._api.create(path("v1", "events", namespace), event)
            except ApiError as error:
                name = event["involvedObject"]["name"]
                _log.warning("%s/%s: no event %s: %s", namespace, name, event["reason"], error)


def _event(job: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> dict[str, Any]:
    namespace, name = job["namespace"], job["name"]
    moment = _moment()
    now = written(moment / 1e9)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{moment:016x}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": contract.API_VERSION,
            "kind": contract.JOB_KIND,
            "name": name,
            "namespace": namespace,
            "uid": job["uid"],
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message[:_LONGEST],
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }

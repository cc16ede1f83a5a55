"""Kubernetes Events of a job, one for each transition."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, ApiError, path
from gradsieve_operator.status.times import written

_COMPONENT = "gradsieve-operator"
_LONGEST = 1024
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


async def post_event(api: Api, job: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
    """Attach an Event to the job with the metadata ``job``.

    It informs, so that failing to is not worth more than a line in the log.
    """
    namespace, name = job["namespace"], job["name"]
    moment = _moment()
    now = written(moment / 1e9)
    event = {
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
    try:
        await api.create(path("v1", "events", namespace), event)
    except ApiError as error:
        _log.warning("%s/%s: no event %s: %s", namespace, name, reason, error)

"""Kubernetes Events of a job, one for each transition."""

from __future__ import annotations

import datetime as dt
import logging
import uuid

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, ApiError, path
from gradsieve_operator.spec import HorovodJob

_COMPONENT = "gradsieve-operator"
_LONGEST = 1024
_log = logging.getLogger(__name__)


async def post_event(api: Api, job: HorovodJob, *, warning: bool, reason: str, message: str) -> None:
    """Attach an Event to ``job``; it informs, so that failing to is not worth more than a line in the log."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": contract.API_VERSION,
            "kind": contract.JOB_KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
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
        await api.create(path("v1", "events", job.namespace), event)
    except ApiError as error:
        _log.warning("%s/%s: no event %s: %s", job.namespace, job.name, reason, error)

"""Kubernetes Events of a job, one for each transition."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, ApiError, path

_COMPONENT = "gradsieve-operator"
_LONGEST = 1024
_log = logging.getLogger(__name__)


async def post_event(api: Api, job: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
    """Attach an Event to the job with the metadata ``job``.

    It informs, so that failing to is not worth more than a line in the log.
    """
    namespace, name = job["namespace"], job["name"]
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
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

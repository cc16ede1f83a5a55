"""A job's status is written, if the job is as it was when it was looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.errors import ApiError, OperatorError


class JobChanged(OperatorError):
    """The job has changed since it was looked at, or another has its name: look and decide anew."""


async def write_status(
    api: Api, cache: Cache, where: str, uid: str, change: Mapping[str, Any], memory: Memory
) -> None:
    """Merge ``change`` into the status of the job at ``where``, if it is as it was when it was looked at.

    What was decided by an operator that has stood still, or been cut off, must not undo what its successor
    has recorded meanwhile. An earlier version's record goes once the answer shows that there is a new one.

    Raises:
        JobChanged: it is not.
        OperatorError: the server drops the record; without one, a job would be begun again and again.
    """
    body = {"metadata": {"uid": uid, "resourceVersion": memory.version}, "status": dict(change)}
    try:
        written = await api.merge(f"{where}/status", body)
    except ApiError as error:
        if error.status == 409:
            raise JobChanged(str(error)) from error
        raise
    cache.written_job(written)
    memory.written_at = time.monotonic()
    memory.version, status = str(written["metadata"]["resourceVersion"]), written.get("status") or {}
    if "record" not in change:
        return
    if status.get("record") != change["record"]:
        raise OperatorError(
            "the API server does not keep status.record: apply the CustomResourceDefinitions of this version"
        )
    if "progress" in status:
        await write_status(api, cache, where, uid, {"progress": None}, memory)

"""A job that the operator fails to work on, for reasons of its own: what is said, and what is still done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.errors import ApiError, OperatorError

_LASTING_SECONDS = 10.0
"""An API server that fails for so long does not do so in passing: it can write a status, and it says no."""

_log = logging.getLogger(__name__)


def in_words(error: Exception) -> str:
    """Return what went wrong, for people: our own errors speak for themselves, others need their names."""
    if isinstance(error, OperatorError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def worth_saying(error: Exception, memory: Memory) -> bool:
    """Whether the same will go wrong again: all but calls that the API server has failed for a moment."""
    if memory.troubled_since is None:
        memory.troubled_since = time.monotonic()
    passing = isinstance(error, ApiError) and (error.unknown_kind or not error.refusal)
    return not passing or time.monotonic() - memory.troubled_since >= _LASTING_SECONDS


async def let_go(api: Api, cache: Cache, metadata: Mapping[str, Any]) -> None:
    """Delete all pods of a suspended job, whatever else of it cannot be read; its coordinator is not asked.

    Args:
        api: the server.
        cache: has the pods.
        metadata: of the job.

    Raises:
        ApiError: the server failed.
    """
    key = metadata["namespace"], metadata["name"]
    for pod in cache.owned(key, metadata["uid"]):
        if not pod.deleting:
            _log.info("%s/%s: suspended: deleting %s", *key, pod.name)
            await api.delete(path("v1", "pods", key[0], pod.name), uid=pod.uid)
            cache.deleted_pod(key, pod.uid)

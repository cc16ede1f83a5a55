"""What Prometheus is told of the operator: the names are a promise, alerts and dashboards use them.

One registry for the process, as prometheus_client has it by default; ours holds nothing that other libraries
register. What somebody knows at any time (the queue's depth, the places held) is asked for when Prometheus
asks; the rest is counted where it happens.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gradsieve_operator.decide import Progress

REGISTRY = CollectorRegistry()
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ProcessCollector(registry=REGISTRY)

_RECONCILES = Histogram(
    "gradsieve_operator_reconcile_seconds",
    "Time of one look at one job, with all that was done for it.",
    ["result"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=REGISTRY,
)
_REQUESTS = Counter(
    "gradsieve_operator_api_requests",
    "Requests to the API server; the code of one without an answer is 'error'.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
_WAITS = Histogram(
    "gradsieve_operator_place_wait_seconds",
    "For how long jobs had waited for places when all of their pods had got theirs.",
    buckets=(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0),
    registry=REGISTRY,
)
_LEADER = Gauge(
    "gradsieve_operator_leader", "1 for the replica that acts, 0 for one that waits to.", registry=REGISTRY
)
_QUEUE_DEPTH = Gauge(
    "gradsieve_operator_queue_depth", "Jobs that are due to be looked at and are not yet.", registry=REGISTRY
)
_WAITING_JOBS = Gauge(
    "gradsieve_operator_waiting_jobs", "Jobs that ask for places and have none.", registry=REGISTRY
)
_PLACES_HELD = Gauge(
    "gradsieve_operator_places_held",
    "Places asked for by jobs that were overtaken so often that places are held for them.",
    registry=REGISTRY,
)

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ROOTS = {"api": 2, "apis": 3}
"""What paths of the API begin with, and how many of their parts come before the resource."""

_UNKNOWN = "-"


class _Jobs(Collector):
    """How many jobs are in which state; a state is the reason of the condition Running."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], str] = {}

    def collect(self) -> Iterable[Metric]:
        found = GaugeMetricFamily(
            "gradsieve_operator_jobs", "Jobs by the reason of their condition Running.", labels=["state"]
        )
        for state, count in sorted(Tally(self._states.values()).items()):
            found.add_metric([state], count)
        yield found

    def seen(self, key: tuple[str, str], conditions: Iterable[Mapping[str, Any]]) -> None:
        """Take note of a job's conditions."""
        state = next((each["reason"] for each in conditions if each["type"] == "Running"), None)
        if state is not None:
            self._states[key] = state

    def forget(self, key: tuple[str, str]) -> None:
        """Take note that a job is no more."""
        self._states.pop(key, None)

    def clear(self) -> None:
        """Take note that no job was seen yet."""
        self._states.clear()


JOBS = _Jobs()
REGISTRY.register(JOBS)


def exposition() -> bytes:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)


@contextlib.contextmanager
def reconciling() -> Iterator[None]:
    """Count one look at a job."""
    began, result = time.monotonic(), "error"
    try:
        yield
        result = "success"
    finally:
        _RECONCILES.labels(result).observe(time.monotonic() - began)


def started(before: Progress, after: Progress) -> None:
    """Count for how long a job that has just got all of its places had waited for them."""
    if before.started is None and after.started is not None and after.waited_since is not None:
        # Clocks of two leaders may differ.
        _WAITS.observe(max(0.0, after.started - after.waited_since))


def counted_requests() -> aiohttp.TraceConfig:
    """Return what counts the requests of a session to the API server."""

    async def answered(
        _session: aiohttp.ClientSession, _context: SimpleNamespace, told: aiohttp.TraceRequestEndParams
    ) -> None:
        _count(told.method, told.url.path, told.url.query, str(told.response.status))

    async def failed(
        _session: aiohttp.ClientSession, _context: SimpleNamespace, told: aiohttp.TraceRequestExceptionParams
    ) -> None:
        _count(told.method, told.url.path, told.url.query, "error")

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace


def _count(method: str, path: str, query: Mapping[str, str], code: str) -> None:
    resource, named = _resource(path)
    verb = _VERBS.get(method, "get" if named else "list")
    _REQUESTS.labels("watch" if query.get("watch") == "true" else verb, resource, code).inc()


def _resource(path: str) -> tuple[str, bool]:
    """Return the resource that a path leads to, with its subresource, and whether to one object of it."""
    parts = path.strip("/").split("/")
    # A server may lie behind a path of its own.
    root = next((at for at, part in enumerate(parts) if part in _ROOTS), len(parts))
    rest = parts[root + _ROOTS.get(parts[root], 0) :] if root < len(parts) else []
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join([*rest[:1], *rest[2:3]]) or _UNKNOWN, len(rest) > 1


def ask(
    queue_depth: Callable[[], float],
    waiting_jobs: Callable[[], float],
    places_held: Callable[[], float],
    leader: Callable[[], float],
) -> None:
    """Say which operator knows the numbers that Prometheus asks for; it has seen no job yet."""
    JOBS.clear()
    _QUEUE_DEPTH.set_function(queue_depth)
    _WAITING_JOBS.set_function(waiting_jobs)
    _PLACES_HELD.set_function(places_held)
    _LEADER.set_function(leader)

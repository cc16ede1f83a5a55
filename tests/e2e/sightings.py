"""When things were first seen in the API, to the millisecond: its own timestamps are whole seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from horovod_job import Job
from kubernetes import client, watch

_ROUND_SECONDS = 1
"""A watch is opened anew so often, so that its thread ends soon after it was told to."""


class Sightings:
    """Pods, and the restarts that the operator has counted, of one job.

    It counts a restart before it does anything about the loss: that is its decision.

    Args:
        job: to be watched.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pods: dict[str, float] = {}
        self._restarts: dict[int, float] = {}

    def replacement_seconds(self, restart: int, pod: str) -> float:
        """Return how long after the decision to restart the job, the ``restart``th, ``pod`` was there."""
        return self._pods[pod] - self._restarts[restart]

    def saw_pod(self, pod: dict[str, Any]) -> None:
        """Take note of a pod."""
        self._pods.setdefault(pod["metadata"]["name"], time.monotonic())

    def saw_job(self, job: dict[str, Any]) -> None:
        """Take note of a job."""
        if job["metadata"]["name"] == self._job.name:
            restarts = job.get("status", {}).get("restartCount", 0)
            self._restarts.setdefault(restarts, time.monotonic())


@contextmanager
def sightings(cluster: Any, job: Job) -> Iterator[Sightings]:
    """Watch a job, be it there already or not, from now on."""
    found, over = Sightings(job), threading.Event()
    core, custom = client.CoreV1Api(cluster.api), client.CustomObjectsApi(cluster.api)

    def follow(see: Callable[[dict[str, Any]], None], read: Callable[..., Any], *arguments: str) -> None:
        last = False
        while not last:
            # One more round when it is over: something may have come between two of them.
            last = over.is_set()
            events = watch.Watch().stream(read, *arguments, timeout_seconds=_ROUND_SECONDS)
            try:
                for event in events:
                    see(event["raw_object"])
            except client.ApiException as error:
                if "context deadline exceeded" not in str(error.reason):
                    raise
                # On a busy machine a round can be over before the server has begun: that was none.
                last = False

    kind = ("gradsieve.io", "v1alpha1", job.namespace, "horovodjobs")
    with ThreadPoolExecutor() as threads:
        followed = [
            threads.submit(follow, found.saw_pod, core.list_namespaced_pod, job.namespace),
            threads.submit(follow, found.saw_job, custom.list_namespaced_custom_object, *kind),
        ]
        try:
            yield found
        finally:
            over.set()
        for each in followed:
            each.result()

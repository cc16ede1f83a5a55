"""Whole lives of HorovodJobs, several side by side, and what is left of them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from horovod_job import KINDS, OURS, Job, idle_group, python_group
from kubernetes import client

Body = dict[str, Any]
_COUNTER = re.compile(r"-\d+$")
_PAUSE = 0.3
_END = "/dev/shm/end"  # in the memory that agents have: written by a test, seen by the rank
_RANK = f"""
import os, time
while not os.path.exists("{_END}"):
    time.sleep(0.2)
"""


@dataclass(frozen=True)
class Seen:
    """One job and its pods at one moment; ``body`` is None if it is not there."""

    body: Body | None
    pods: tuple[Body, ...]

    def condition(self, kind: str) -> str:
        """Return the status of a condition."""
        found = ((self.body or {}).get("status") or {}).get("conditions") or ()
        return next((each["status"] for each in found if each["type"] == kind), "")

    def settled(self, places: int) -> bool:
        """Whether the job is admitted, with exactly one living pod at each place, and that runs."""
        living = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]
        hosts = Counter(pod["spec"]["hostname"] for pod in living)
        runs = all(pod["status"].get("phase") == "Running" for pod in living)
        return self.condition("Admitted") == "True" and runs and list(hosts.values()) == [1] * places

    def plan(self) -> tuple[int, int]:
        """Return generation and density of the plan that the coordinator was given."""
        found = ((self.body or {}).get("status") or {}).get("plan") or {}
        return int(found.get("generation") or 0), int(found.get("densityPermille") or 0)

    def restarts(self) -> int:
        """Return how often it was restarted."""
        return int(((self.body or {}).get("status") or {}).get("restartCount") or 0)

    def newest(self, host: str) -> str:
        """Return the name of the last pod at a place."""
        names = [pod["metadata"]["name"] for pod in self.pods if pod["spec"]["hostname"] == host]
        return max(names, key=lambda name: int(name.rpartition("-")[2]))


State = Callable[[Seen], bool]
Life = Callable[[Job, Callable[[], Seen]], Iterator[State]]
"""Does something to a job whenever the state that it asked for has been reached."""


def lives(cluster: Any) -> dict[str, Life]:
    """Return the lives by the names of their jobs; every job has a coordinator and two workers.

    Only one of them, `trained`, has ranks, which take roster, plan and a replacement: the others just wait.
    """
    group = idle_group("worker", 2, cluster.training_image)

    def completed(job: Job, look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group)
        yield lambda seen: seen.settled(3)
        job.end_well(look().newest("coordinator"))
        yield lambda seen: seen.condition("Complete") == "True" and len(seen.pods) == 1

    def replaced(job: Job, look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group)
        yield lambda seen: seen.settled(3)
        job.kubectl("delete", "pod", look().newest("worker-1"), "--wait=false")
        yield lambda seen: seen.settled(3) and seen.restarts() == 1
        job.kubectl("delete", "pod", look().newest("coordinator"), "--wait=false")
        yield lambda seen: seen.settled(3) and seen.restarts() == 2

    def resumed(job: Job, _look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group)
        yield lambda seen: seen.settled(3)
        job.patch({"suspend": True})
        yield lambda seen: seen.condition("Suspended") == "True" and not seen.pods
        job.patch({"suspend": False})
        yield lambda seen: seen.settled(3)

    def failed(job: Job, look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group, runPolicy={"backoffLimit": 0, "cleanPodPolicy": "None"})
        yield lambda seen: seen.settled(3)
        job.kubectl("delete", "pod", look().newest("worker-0"), "--wait=false")
        yield lambda seen: seen.condition("Failed") == "True" and len(seen.pods) == 2

    def expired(job: Job, _look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group, runPolicy={"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1})
        yield lambda seen: seen.body is None and not seen.pods

    def trained(job: Job, look: Callable[[], Seen]) -> Iterator[State]:
        ranks = python_group(cluster, job.namespace, 2, _RANK)
        job.apply(ranks, compression={"algorithm": "Laplace", "densityPermille": 10})
        yield lambda seen: seen.condition("Running") == "True"
        job.patch({"compression": {"densityPermille": 20}})
        # An operator that was killed before it recorded a plan that it had sent sends it as the next one.
        yield lambda seen: seen.plan() >= (2, 20) and seen.plan()[1] == 20
        job.kubectl("delete", "pod", look().newest("worker-1"), "--wait=false")
        yield lambda seen: seen.settled(3) and seen.restarts() == 1 and seen.condition("Running") == "True"
        for host in ("worker-0", "worker-1"):
            job.kubectl("exec", look().newest(host), "--", "touch", _END)
        yield lambda seen: seen.condition("Complete") == "True" and len(seen.pods) == 1

    def deleted(job: Job, _look: Callable[[], Seen]) -> Iterator[State]:
        job.apply(group)
        yield lambda seen: seen.settled(3)
        job.kubectl("delete", "hvj", job.name, "--wait=false")
        yield lambda seen: seen.body is None and not seen.pods

    return {life.__name__: life for life in (completed, replaced, resumed, failed, expired, trained, deleted)}


class Lives:
    """The jobs of one namespace.

    Args:
        cluster: where they are.
        namespace: where in the cluster; nothing else is in it.
    """

    def __init__(self, cluster: Any, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._core = client.CoreV1Api(cluster.api)
        self._custom = client.CustomObjectsApi(cluster.api)

    def look(self) -> Callable[[str], Seen]:
        """Return what shows each job as it is now."""
        jobs = self._custom.list_namespaced_custom_object(
            "gradsieve.io", "v1alpha1", self._namespace, "horovodjobs"
        )
        found = json.loads(self._core.list_namespaced_pod(self._namespace, _preload_content=False).data)
        bodies = {body["metadata"]["name"]: body for body in jobs["items"]}

        def seen(name: str) -> Seen:
            pods = [pod for pod in found["items"] if pod["metadata"]["labels"].get(OURS) == name]
            return Seen(bodies.get(name), tuple(pods))

        return seen

    def live(self, lives: Mapping[str, Life], seconds: float) -> None:
        """Live all ``lives`` to their ends, side by side.

        Raises:
            AssertionError: some did not end in time; the message tells what was seen.
        """
        deadline = time.monotonic() + seconds
        running = {
            name: life(Job(self._cluster, self._namespace, name), lambda name=name: self.look()(name))
            for name, life in lives.items()
        }
        wanted = {name: next(life) for name, life in running.items()}
        while wanted:
            look = self.look()
            for name in [name for name, state in wanted.items() if state(look(name))]:
                following = next(running[name], None)
                if following is None:
                    del wanted[name]
                else:
                    wanted[name] = following
            if time.monotonic() > deadline:
                shown = self._cluster.kubectl("--namespace", self._namespace, "get", "hvj,pods", "-o", "wide")
                raise AssertionError(f"not ended within {seconds:.0f} s: {sorted(wanted)}\n{shown}")
            time.sleep(_PAUSE)

    def remains(self, name: str) -> dict[str, Any]:
        """Return what is left of a life.

        Pods are told apart by their places: counters in their names say how often one was begun.
        """
        look, job = self.look()(name), Job(self._cluster, self._namespace, name)
        status = (look.body or {}).get("status") or {}
        listed = json.loads(
            job.kubectl("get", f"{KINDS},serviceaccounts", "-l", f"{OURS}={name}", "-o", "json")
        )
        children = []
        for item in listed["items"]:
            metadata = item["metadata"]
            pod = item["kind"] == "Pod"
            owners = [(owner["kind"], owner["name"]) for owner in metadata["ownerReferences"]]
            shown = _COUNTER.sub("", metadata["name"]) if pod else metadata["name"]
            children.append((item["kind"], shown, owners, item["status"]["phase"] if pod else ""))
        return {
            "conditions": [
                (each["type"], each["status"], each["reason"]) for each in status.get("conditions") or ()
            ],
            "restarts": status.get("restartCount"),
            "children": sorted(children),
        }

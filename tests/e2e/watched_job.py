"""One job that an onlooker watches: what its author does to it, each with what then is to be waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from cluster.simulated_nodes import SELECTED
from history import bound, condition, finished, living, places
from horovod_job import idle_group, python_group
from kubernetes import client
from kubernetes.client import ApiException
from onlooker import Onlooker
from stamps import FOLDER, PROGRAM
from urllib3.exceptions import HTTPError

Body = dict[str, Any]
Steps = Iterator[tuple[str, Callable[[], bool]]]
"""What is waited for, and whether it is so."""

STEP_SECONDS = 240.0
_CALL_SECONDS = 5
_PAUSE = 0.2


class WatchedJob:
    """A job of a coordinator and some workers.

    Args:
        cluster: where it is.
        onlooker: shows it.
        name: of the job.
        seconds: for how long its ranks work; 0 for a job without ranks, whose pods just wait.
        status: with which its program ends.
        simulated: whether its pods, which then have no ranks, are only said to run.
    """

    def __init__(
        self,
        cluster: Any,
        onlooker: Onlooker,
        name: str,
        seconds: float = 0.0,
        status: int = 0,
        *,
        simulated: bool = False,
    ) -> None:
        self._cluster, self._onlooker, self.name = cluster, onlooker, name
        self._seconds, self._status, self._simulated = seconds, status, simulated
        self._core, self._custom = client.CoreV1Api(cluster.api), client.CustomObjectsApi(cluster.api)
        self._kind = ("gradsieve.io", "v1alpha1", onlooker.namespace, "horovodjobs")
        self._group: Body = {}

    def live(self, steps: Steps, seconds: float = STEP_SECONDS) -> None:
        """Do something, and return when it has come to what it was to come to; see `wait`."""
        for what, reached in steps:
            self.wait(what, reached, seconds)

    def wait(self, what: str, reached: Callable[[], bool], seconds: float = STEP_SECONDS) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it is not in time, or a law was broken meanwhile.
        """
        deadline = time.monotonic() + seconds
        while not reached():
            self._onlooker.check()
            assert time.monotonic() < deadline, f"{self.name}: {what}: not within {seconds:.0f} s"
            time.sleep(_PAUSE)

    def begin(self, workers: int, failures: int = 50, **spec: Any) -> Steps:
        """Make it, so that it survives so many failures of its own; ``spec`` may say more of its policy."""
        if self._seconds:
            claim = {"name": "journal", "persistentVolumeClaim": {"claimName": "journal"}}
            namespace = self._onlooker.namespace
            group = python_group(self._cluster, namespace, workers, PROGRAM, {FOLDER: claim})
            told = {"SECONDS_TO_WORK": f"{self._seconds:.1f}", "STATUS_TO_END_WITH": str(self._status)}
            container = group["template"]["spec"]["containers"][0]
            variables = [{"name": name, "value": value} for name, value in told.items()]
            container["env"] = [*container["env"], *variables]
        else:
            pod = SELECTED if self._simulated else {}
            group = idle_group("worker", workers, self._cluster.training_image, minReplicas=1, pod=pod)
        self._group = group
        # An idle coordinator does not answer, and need not for so long.
        policy = {"backoffLimit": failures, "nodeLostSeconds": 300, **spec.pop("runPolicy", {})}
        body = {
            "apiVersion": "gradsieve.io/v1alpha1",
            "kind": "HorovodJob",
            "metadata": {"name": self.name, "namespace": self._onlooker.namespace},
            "spec": {**spec, "runPolicy": policy, "workerGroups": [group]},
        }
        where = (*self._kind, body)
        self._surely(self._custom.create_namespaced_custom_object, *where, done=HTTPStatus.CONFLICT)
        yield "there", lambda: self.body is not None

    def settle(self) -> Steps:
        """Wait until all of its pods run, or it has ended."""
        yield "settled", self._is_settled

    def suspend(self) -> Steps:
        """Suspend it, and go on with it; one that has ended by itself keeps what pods its policy says."""
        self._patch({"suspend": True})
        yield "suspended, or ended", self._is_suspended
        self._patch({"suspend": False})
        yield from self.settle()

    def scale(self, workers: int) -> Steps:
        """Give it another size."""
        self._group = {**self._group, "replicas": workers}
        self._patch({"workerGroups": [self._group]})
        yield from self.settle()

    def lose(self, pod: Body) -> Steps:
        """Delete a pod of it."""
        uid, where = pod["metadata"]["uid"], (pod["metadata"]["name"], self._onlooker.namespace)
        self._surely(self._core.delete_namespaced_pod, *where, done=HTTPStatus.NOT_FOUND)
        yield "a pod less", lambda: uid not in {pod["metadata"]["uid"] for pod in self.pods()}
        yield from self.settle()

    def copy(self, pod: Body, number: int) -> Steps:
        """Make a second pod of a place, as an operator would that does not know of the first."""
        metadata = pod["metadata"]
        kept = {name: metadata[name] for name in ("labels", "annotations", "ownerReferences")}
        name = f"{metadata['name'].rpartition('-')[0]}-{number}"
        spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
        body = {"metadata": {**kept, "name": name}, "spec": spec}
        where = (self._onlooker.namespace, body)
        made = self._surely(self._core.create_namespaced_pod, *where, done=HTTPStatus.CONFLICT)
        if made is not None:
            yield "the copy of a pod there", lambda: self._onlooker.has_seen(made.metadata.uid)
        yield "the copy of a pod gone", lambda: name not in {pod["metadata"]["name"] for pod in self.pods()}

    def end(self) -> Steps:
        """Let its program end, and wait until it says so."""
        if not self._seconds:
            yield from self.settle()
            if not finished(self.body or {}):
                self._end_coordinator()
        yield "ended", lambda: self.says("Failed" if self._status else "Complete")

    def delete(self) -> Steps:
        """Delete it."""
        assert self.body is not None
        self._onlooker.deleting(self.body["metadata"]["uid"])
        where = (*self._kind, self.name)
        self._surely(self._custom.delete_namespaced_custom_object, *where, done=HTTPStatus.NOT_FOUND)
        yield "gone", lambda: self.body is None and not self.pods()

    @property
    def body(self) -> Body | None:
        """The job as it was last seen, None if it is not there."""
        return self._onlooker.job(self.name)

    def pods(self) -> list[Body]:
        """Return its pods, by their names."""
        return sorted(self._onlooker.pods(self.name), key=lambda pod: str(pod["metadata"]["name"]))

    def living(self) -> list[Body]:
        """Return its pods that may run and shall."""
        return [pod for pod in self.pods() if living(pod)]

    def says(self, kind: str) -> bool:
        """Whether a condition of it is true."""
        return self.body is not None and condition(self.body, kind) == "True"

    def _observed(self) -> Body | None:
        """Return it as it was last seen, if the operator had seen what was last changed."""
        job = self.body
        observed = ((job or {}).get("status") or {}).get("observedGeneration")
        return None if job is None or job["metadata"]["generation"] != observed else job

    def _is_suspended(self) -> bool:
        job = self._observed()
        if job is None:
            return False
        return bool(finished(job)) or (self.says("Suspended") and not self.pods())

    def _is_settled(self) -> bool:
        job = self._observed()
        if job is None:
            return False
        pods = self.living()
        runs = [pod for pod in pods if bound(pod) and pod["status"]["phase"] == "Running"]
        running = {pod["spec"]["hostname"] for pod in runs}
        full = len(running) == len(pods) == places(job) and condition(job, "Admitted") == "True"
        return full or bool(finished(job))

    def _end_coordinator(self) -> None:
        """Let what the coordinator of a job without ranks runs end."""
        pod = next(pod for pod in self.living() if pod["spec"]["hostname"] == "coordinator")
        self._onlooker.ended(pod, self._status)
        if self._simulated:
            self._say_ended(pod)
            return
        # Again and again, as `Job.end_well` says.
        signal = "USR2" if self._status else "USR1"
        told = ("sh", "-c", f"(while sleep 0.5; do kill -{signal} 1; done) > /dev/null 2>&1 &")
        where = (self._onlooker.namespace, pod["metadata"]["name"])
        self._cluster.retry(lambda: self._cluster.execute(*where, *told) is not None, STEP_SECONDS)

    def _say_ended(self, pod: Body) -> None:
        """Write what a kubelet writes when a pod's container has ended."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        ended = {"exitCode": self._status, "startedAt": now, "finishedAt": now}
        kept = {name: pod["spec"]["containers"][0][name] for name in ("name", "image")}
        state = {**kept, "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
        phase = "Failed" if self._status else "Succeeded"
        body = {"status": {"phase": phase, "containerStatuses": [state]}}
        where = (pod["metadata"]["name"], self._onlooker.namespace, body)
        self._surely(self._core.patch_namespaced_pod_status, *where, done=HTTPStatus.NOT_FOUND)

    def _patch(self, spec: Body) -> None:
        change = {"spec": spec}
        self._surely(
            self._custom.patch_namespaced_custom_object,
            *(*self._kind, self.name, change),
            _content_type="application/merge-patch+json",
        )

    def _surely(
        self, call: Callable[..., Any], *arguments: Any, done: HTTPStatus | None = None, **options: Any
    ) -> Any:
        """Make a call until it has arrived: authors, too, try again while the API server is away.

        Args:
            call: of the client.
            arguments: of the call.
            done: what is answered to a call that had arrived before.
            options: of the call.

        Returns:
            Its answer; None if it had arrived before.
        """
        deadline = time.monotonic() + STEP_SECONDS
        while time.monotonic() < deadline:
            try:
                return call(*arguments, _request_timeout=_CALL_SECONDS, **options)
            except ApiException as error:
                if error.status == done:
                    return None
                if error.status and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                time.sleep(_PAUSE)
            except HTTPError:
                time.sleep(_PAUSE)
        raise AssertionError(f"{self.name}: no call arrived within {STEP_SECONDS:.0f} s")

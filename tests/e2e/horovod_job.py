"""HorovodJobs on the test cluster: their manifests, and what is seen of them."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import IO, Any

from cluster.errors import ClusterError
from cluster.pods import restricted_container, restricted_pod
from kubernetes import client

KINDS = "pods,secrets,services,configmaps,networkpolicies,serviceaccounts"
LEFT_OVER_KINDS = f"{KINDS},endpointslices,leases,horovodjobs"
OURS = "gradsieve.io/job"
_STEP_LINE = re.compile(r" step \d+ loss ")
_SHOWN_LINES = 60


def group(name: str, replicas: int, image: str, command: list[str], **fields: Any) -> dict[str, Any]:
    """Return a worker group whose pods pass *restricted* pod security.

    Args:
        name: of the group.
        replicas: how many workers.
        image: that the nodes have.
        command: what ranks run.
        fields: of the group; ``container`` and ``pod`` go into the template.
    """
    container = {
        "name": "train",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": {"cpu": "10m"}},
        "securityContext": restricted_container(),
        **fields.pop("container", {}),
    }
    pod = {"securityContext": restricted_pod(), "terminationGracePeriodSeconds": 1, **fields.pop("pod", {})}
    template = {"spec": {**pod, "containers": [container]}}
    return {"name": name, "replicas": replicas, "template": template, **fields}


def idle_program(namespace: str) -> dict[str, Any]:
    """Return a ConfigMap that takes the place of agent and coordinator in pods that only have to be there.

    Told to end, it ends as they do, at once; SIGUSR1 is the end of a job that went well, SIGUSR2 of one that
    failed with status 3.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "idle", "namespace": namespace},
        "data": {
            "main": "import os, signal; signal.signal(15, lambda *_: os._exit(143)); "
            "signal.signal(10, lambda *_: os._exit(0)); signal.signal(12, lambda *_: os._exit(3)); "
            "signal.pause()"
        },
    }


def idle_group(name: str, replicas: int, image: str, **fields: Any) -> dict[str, Any]:
    """Return a group of pods that wait: Python finds `idle_program` where it looks for the agent."""
    items = [{"key": "main", "path": "gradsieve_hvd/__init__.py"}]
    container = {
        "env": [{"name": "PYTHONPATH", "value": "/idle"}],
        "volumeMounts": [{"name": "idle", "mountPath": "/idle", "readOnly": True}],
        **fields.pop("container", {}),
    }
    volume = {"name": "idle", "configMap": {"name": "idle", "items": items}}
    pod = {"volumes": [volume], **fields.pop("pod", {})}
    return group(name, replicas, image, ["true"], container=container, pod=pod, **fields)


def python_group(
    cluster: Any, namespace: str, replicas: int, program: str, volumes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a group with real agents, whose ranks run a Python program.

    Args:
        cluster: that has the project's packages.
        namespace: of the job.
        replicas: how many workers.
        program: its text.
        volumes: further ones, by the folders that they are mounted at.
    """
    python, more = cluster.python_volume(namespace), volumes or {}
    mounts = [{"name": volume["name"], "mountPath": folder} for folder, volume in more.items()]
    return group(
        "worker",
        replicas,
        cluster.training_image,
        ["python3", "-c", program],
        container={"env": python.env, "volumeMounts": [*python.mounts, *mounts]},
        pod={"volumes": [*python.volumes, *more.values()]},
    )


def contents(cluster: Any, namespace: str) -> set[str]:
    """Return kind and name of all that a job could leave in a namespace."""
    return set(cluster.kubectl("--namespace", namespace, "get", LEFT_OVER_KINDS, "-o", "name").split())


class Job:
    """One HorovodJob.

    Args:
        cluster: where it is.
        namespace: where in the cluster.
        name: of the job.

    Attributes:
        namespace: as given.
        name: as given.
    """

    def __init__(self, cluster: Any, namespace: str, name: str = "digits") -> None:
        self._cluster, self.namespace, self.name = cluster, namespace, name
        # What is read again and again is not read by kubectl: each start of it takes a noticeable part of the
        # processors that the pods share.
        self._core, self._custom = client.CoreV1Api(cluster.api), client.CustomObjectsApi(cluster.api)

    def apply(self, *groups: dict[str, Any], **spec: Any) -> None:
        """Create or change it."""
        self._cluster.apply(
            {
                "apiVersion": "gradsieve.io/v1alpha1",
                "kind": "HorovodJob",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": {"workerGroups": list(groups), **spec},
            }
        )

    def patch(self, spec: dict[str, Any]) -> None:
        """Merge into its spec."""
        self.kubectl("patch", "hvj", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Run kubectl in its namespace."""
        return self._cluster.kubectl("--namespace", self.namespace, *arguments, **options)

    def log(self, *options: str) -> str:
        """Return what its first coordinator said, empty before that has started."""
        return self.kubectl("logs", f"{self.name}-coordinator-1", *options, check=False)

    def follow(self, pod: str, into: IO[str]) -> subprocess.Popen[str]:
        """Write what a pod says from now on into a file, until it ends; returns the process that does so."""
        return self._cluster.start_kubectl(
            "--namespace", self.namespace, "logs", "--follow", "--tail=0", pod, stdout=into
        )

    def children(self, kinds: str = KINDS) -> list[str]:
        """Return the names of what it owns."""
        found = self.kubectl("get", kinds, "-l", f"{OURS}={self.name}", "-o", "json")
        return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in json.loads(found)["items"])

    def owners(self) -> dict[str, set[str]]:
        """Return the UIDs of the owners of everything with its label, by kind and name."""
        found = json.loads(self.kubectl("get", KINDS, "-l", f"{OURS}={self.name}", "-o", "json"))
        return {
            f"{item['kind']}/{item['metadata']['name']}": {
                owner["uid"] for owner in item["metadata"]["ownerReferences"]
            }
            for item in found["items"]
        }

    def uid(self) -> str:
        """Return its UID."""
        return self.kubectl("get", "hvj", self.name, "-o", "jsonpath={.metadata.uid}")

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return its pods by name."""
        listed = self._core.list_namespaced_pod(
            self.namespace, label_selector=f"{OURS}={self.name}", _preload_content=False
        )
        return {item["metadata"]["name"]: item for item in json.loads(listed.data)["items"]}

    def status(self) -> dict[str, Any]:
        """Return its status, empty while it has none or is not there."""
        names = ("gradsieve.io", "v1alpha1", self.namespace, "horovodjobs", self.name)
        try:
            found = self._custom.get_namespaced_custom_object(*names)
        except client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}
            raise
        return found.get("status") or {}

    def condition(self, kind: str) -> dict[str, str]:
        """Return one of its conditions, empty while there is none."""
        conditions = self.status().get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {"status": "", "reason": ""})

    def admitted(self) -> bool:
        """Whether all of its pods have their nodes."""
        return self.condition("Admitted")["status"] == "True"

    def waits_because(self, reason: str) -> bool:
        """Whether it has no places for this reason, nor any pod."""
        found = self.condition("Admitted")
        return (found["status"], found["reason"], self.pods()) == ("False", reason, {})

    def said(self, reason: str) -> list[str]:
        """Return the messages of its Events with this reason, the last one last."""
        fields = f"involvedObject.name={self.name},reason={reason}"
        found = self.kubectl("get", "events", "--field-selector", fields, "-o", "json")
        return [event["message"] for event in json.loads(found)["items"]]

    def end_well(self, pod: str) -> None:
        """Have the idle program of a pod end as it does when all went well."""
        # A little later, since what runs beside it is killed with it; again and again, since the kernel keeps
        # signals from a first process that has not said yet what to do about them.
        again = "(while sleep 0.5; do kill -USR1 1; done) > /dev/null 2>&1 &"
        self.kubectl("exec", pod, "--", "sh", "-c", again)

    def delete(self, *options: str) -> None:
        """Ask for its end, without waiting."""
        self.kubectl("delete", "hvj", self.name, "--wait=false", *options)

    def wait(self, state: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait until ``state`` holds; returns how long that took.

        Raises:
            AssertionError: it did not; the message tells what was seen instead.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if state():
                    return time.monotonic() - began
            except ClusterError as error:
                if "NotFound" not in str(error):
                    raise
            time.sleep(0.3)
        seen = self.kubectl("get", "hvj,pods,events", "-o", "wide")
        said = [line for line in self.log("--timestamps").splitlines() if not _STEP_LINE.search(line)]
        # What the coordinator says tells why ranks were started again, however long ago that was.
        early = [line for line in said[:-_SHOWN_LINES] if "gradsieve coordinator:" in line]
        told = "\n".join([seen, *early, *said[-_SHOWN_LINES:]])
        raise AssertionError(f"{what}: not within {seconds:.0f} s\n{told}")

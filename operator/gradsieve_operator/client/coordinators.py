"""A job's coordinators: their pods, and what one says when it is asked by a port-forward."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubernetes import stream
from websocket import WebSocketException

from gradsieve_operator import contract
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.foreign_text import one_line

_CALL_SECONDS = 15
_LARGEST_ANSWER = 2 << 20
_ENDED = ("Succeeded", "Failed")


class CoordinatorSilent(OperatorError):
    """A coordinator gave no answer, or one that is none."""


@dataclass(frozen=True)
class CoordinatorPod:
    """A coordinator whose container has run.

    Attributes:
        name: of the pod.
        uid: of the pod.
        over: whether it has ended.
    """

    name: str
    uid: str
    over: bool


def coordinators(core: Any, namespace: str, job: str) -> list[CoordinatorPod]:
    """Return a job's coordinators that have run, by their attempts.

    Raises:
        kubernetes.client.ApiException: the API server refuses to list pods.
    """
    listed = core.list_namespaced_pod(
        namespace,
        label_selector=f"{contract.LABEL_JOB}={job}",
        _preload_content=False,
        _request_timeout=_CALL_SECONDS,
    )
    found = []
    for pod in json.loads(listed.data)["items"]:
        about = pod["metadata"]
        named = contract.read_pod_name(job, about["name"])
        phase = pod.get("status", {}).get("phase")
        if named is not None and named.role == contract.ROLE_COORDINATOR and phase not in (None, "Pending"):
            found.append((named.generation, CoordinatorPod(about["name"], about["uid"], phase in _ENDED)))
    return [pod for _, pod in sorted(found, key=lambda each: each[0])]


def ask(core: Any, namespace: str, pod: str) -> Mapping[str, Any]:
    """Return a coordinator's status from its read-only port, which no NetworkPolicy closes to a kubelet.

    Raises:
        CoordinatorSilent: it cannot be reached or understood.
        kubernetes.client.ApiException: the API server refuses the port-forward.
    """
    port = contract.READONLY_PORT
    try:
        forward = stream.portforward(
            core.connect_get_namespaced_pod_portforward,
            pod,
            namespace,
            ports=str(port),
            _request_timeout=_CALL_SECONDS,
        )
        with closing(forward), closing(http.client.HTTPConnection(pod)) as connection:
            connection.sock = forward.socket(port)
            connection.sock.settimeout(_CALL_SECONDS)
            connection.request("GET", contract.PATH_STATUS)
            answer = connection.getresponse()
            body = answer.read(_LARGEST_ANSWER + 1)
    except (OSError, http.client.HTTPException, WebSocketException) as error:
        raise CoordinatorSilent(f"{pod} does not answer: {one_line(error)}") from error
    if answer.status != HTTPStatus.OK or len(body) > _LARGEST_ANSWER:
        raise CoordinatorSilent(f"{pod} answers with status {answer.status} and {len(body)} bytes")
    try:
        found = json.loads(body)
    except ValueError as error:
        raise CoordinatorSilent(f"{pod} answers with what is no JSON") from error
    if not isinstance(found, Mapping):
        raise CoordinatorSilent(f"{pod} answers with what is no status")
    return found

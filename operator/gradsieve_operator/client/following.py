"""Following a job: what it waits for, what its ranks print, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import urllib3
from kubernetes import client

from gradsieve_operator import contract
from gradsieve_operator.client.coordinators import coordinators
from gradsieve_operator.client.kubeconfig import Target
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.foreign_text import one_line

FAILED_EXIT_STATUS = 1
"""Of a job that has failed although its program did not end by itself."""

_LOOK_SECONDS = 1.0
_CALL_SECONDS = 15
_TURN_SECONDS = 10
"""So long a log is read, or waited for, before the job is looked at again."""

_MARGIN_SECONDS = 20
"""A line may have been on its way for so long."""

_OF_INTEREST = ("Admitted", "Running")
_LARGEST_EXIT_STATUS = 255


class JobGone(OperatorError):
    """The job was deleted while it was followed."""


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        exit_status: for the process that has followed it.
        words: reason and message.
    """

    exit_status: int
    words: str


def ending(status: Mapping[str, Any]) -> Ending | None:
    """Return how a job with that ``status`` has ended, None while it has not."""
    if not status.get("completionTime"):
        return None
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    complete = conditions.get("Complete", {}).get("status") == "True"
    found = conditions.get("Complete" if complete else "Failed", {})
    words = f"{found.get('reason', '')}: {one_line(found.get('message', ''))}"
    code = int(status.get("exitCode") or (0 if complete else FAILED_EXIT_STATUS))
    return Ending(min(code, _LARGEST_EXIT_STATUS), words)


def waits_for(status: Mapping[str, Any]) -> str:
    """Return what a job that has not ended is at, in one line; empty while nothing is known."""
    for each in status.get("conditions") or ():
        if each["type"] in _OF_INTEREST and (each["type"] == "Running" or each["status"] != "True"):
            return f"{each['reason']}: {one_line(each['message'])}"
    return ""


class Follower:
    """Follows one job to its end.

    Args:
        target: where it is.
        name: of the job.
        say: told what the job is at, whenever that changes.
        write: told every line that the coordinator prints.
        pause: waits for some seconds.
    """

    def __init__(
        self,
        target: Target,
        name: str,
        say: Callable[[str], None],
        write: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target, self._name = target, name
        self._say, self._write, self._pause = say, write, pause
        self._core: Any = client.CoreV1Api(target.api)
        self._custom: Any = client.CustomObjectsApi(target.api)
        self._said = ""
        self._written: dict[str, tuple[str, float]] = {}
        self._done: set[str] = set()

    def follow(self) -> Ending:
        """Return when the job has ended and all that its coordinators printed was written.

        Raises:
            JobGone: it was deleted.
            kubernetes.client.ApiException: the API server refuses to show it.
        """
        while True:
            try:
                # In this order: what a coordinator says last is read before the end is believed.
                ended = ending(self._status())
                self._read_coordinators(follow=ended is None)
                if ended is not None:
                    return ended
            except urllib3.exceptions.HTTPError as error:
                self._tell(f"the cluster cannot be reached, trying again: {error}")
            self._pause(_LOOK_SECONDS)

    def _status(self) -> Mapping[str, Any]:
        where = (contract.GROUP, contract.VERSION, self._target.namespace, contract.JOB_PLURAL, self._name)
        try:
            found = self._custom.get_namespaced_custom_object(*where, _request_timeout=_CALL_SECONDS)
        except client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise JobGone(f"{self._name} was deleted") from error
            raise
        status: Mapping[str, Any] = found.get("status") or {}
        self._tell(waits_for(status))
        return status

    def _tell(self, words: str) -> None:
        if words and words != self._said:
            self._said = words
            self._say(words)

    def _read_coordinators(self, *, follow: bool) -> None:
        """Write what coordinators have printed, by their attempts; ``follow``: and what they print now."""
        for pod in coordinators(self._core, self._target.namespace, self._name):
            if pod.uid in self._done:
                continue
            heard_out = self._read_log(pod.name, pod.uid, follow=follow)
            if pod.over and heard_out:
                self._done.add(pod.uid)

    def _read_log(self, pod: str, uid: str, *, follow: bool) -> bool:
        """Write what is new in a pod's log; returns whether that was all of it, now."""
        last, read_at = self._written.get(uid, ("", 0.0))
        # Counted from when the last line was read: this machine's clock and the node's may differ.
        since = {"since_seconds": math.ceil(time.monotonic() - read_at) + _MARGIN_SECONDS} if last else {}
        try:
            log = self._core.read_namespaced_pod_log(
                pod,
                self._target.namespace,
                follow=follow,
                timestamps=True,
                _preload_content=False,
                _request_timeout=(_CALL_SECONDS, _TURN_SECONDS),
                **since,
            )
        except client.ApiException as error:
            # Gone with its node or by a suspension, or its container is not there yet: nothing to read.
            if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST):
                return False
            raise
        turn_ends = time.monotonic() + _TURN_SECONDS
        try:
            for line in _lines(log):
                stamp, _, text = line.partition(" ")
                if stamp > self._written.get(uid, ("", 0.0))[0]:
                    self._written[uid] = (stamp, time.monotonic())
                    self._write(text)
                if follow and time.monotonic() > turn_ends:
                    return False
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ProtocolError):
            # Silent, or cut off: asked for again after a look at the job, from the last line on.
            return False
        finally:
            log.close()
        return True


def _lines(log: urllib3.response.BaseHTTPResponse) -> Iterator[str]:
    rest = b""
    for chunk in log.stream(amt=None):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if rest:
        yield rest.decode(errors="replace")

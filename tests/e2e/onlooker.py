"""Watches the jobs of one namespace beside the operator, and has what it sees judged by the invariants."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.rest import Rest
from history import Deleted, Disturbed, Event, Look, Seen, Worked, owner
from horovod_job import idle_program
from invariants import Judge
from journal import journal
from stamps import Stamps

_WHOLE = "application/json"
_METADATA = ",".join(
    f"application/json;as={kind};g=meta.k8s.io;v=v1"
    for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)
_KINDS = {
    "HorovodJob": ("/apis/gradsieve.io/v1alpha1/namespaces/{}/horovodjobs", _WHOLE),
    "Pod": ("/api/v1/namespaces/{}/pods", _WHOLE),
    "Secret": ("/api/v1/namespaces/{}/secrets", _METADATA),
    "Service": ("/api/v1/namespaces/{}/services", _METADATA),
    "ConfigMap": ("/api/v1/namespaces/{}/configmaps", _METADATA),
    "ServiceAccount": ("/api/v1/namespaces/{}/serviceaccounts", _METADATA),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", _METADATA),
}
_LABEL = "gradsieve.io/job"
_LOOK_SECONDS = 0.5
_WATCH_SECONDS = 60
_RETRY_SECONDS = 0.3


class Onlooker:
    """Follows jobs, what they own, and their ranks; use `onlooking_at_a_namespace`.

    Args:
        cluster: the harness's own.
        namespace: of the jobs.
        stamps: what their ranks write down.
        log: takes the history, one event a line.

    Attributes:
        namespace: as given.
    """

    def __init__(self, cluster: Any, namespace: str, stamps: Stamps, log: Path) -> None:
        self.namespace, self._stamps = namespace, stamps
        self._judge, self._lock, self._over = Judge(), threading.Lock(), threading.Event()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._log = log.open("w")
        self._jobs: dict[str, dict[str, Any]] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, str] = {}
        self._threads = [threading.Thread(target=self._judge_all, daemon=True)]
        for kind, (path, accept) in _KINDS.items():
            arguments = (kind, path.format(namespace), cluster.rest(accept))
            self._threads.append(threading.Thread(target=self._follow, args=arguments, daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End."""
        self._over.set()
        self._threads[0].join()
        self._log.close()

    def check(self) -> None:
        """Raise if a law was broken.

        Raises:
            AssertionError: one was; the message names them all.
        """
        with self._lock:
            broken = [f"{each.at:.1f} {each.law}: {each.message}" for each in self._judge.violations]
        assert not broken, "\n".join(broken)

    def settle(self, seconds: float = 60.0) -> None:
        """Return when all is as it should be in the end, and no law was broken on the way.

        Raises:
            AssertionError: it is not in time; the message tells what is wrong.
        """
        deadline = time.monotonic() + seconds
        while wrong := self._wrong():
            assert time.monotonic() < deadline, wrong
            time.sleep(_LOOK_SECONDS)
        self.check()

    def _wrong(self) -> list[str]:
        with self._lock:
            return self._judge.wrong()

    def job(self, name: str) -> dict[str, Any] | None:
        """Return a job as it was last seen, None if it is not there."""
        with self._lock:
            return next((body for body in self._jobs.values() if body["metadata"]["name"] == name), None)

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods that bear the label of a job."""
        with self._lock:
            return [
                pod for pod in self._pods.values() if pod["metadata"].get("labels", {}).get(_LABEL) == name
            ]

    def has_seen(self, uid: str) -> bool:
        """Whether a job or pod was ever seen."""
        with self._lock:
            return uid in self._owners

    @contextmanager
    def disturbed(self, what: str, seconds: float) -> Iterator[None]:
        """Say that something disturbs the cluster, and for how long afterwards that excuses delays."""
        self._events.put(Disturbed(time.time(), what))
        try:
            yield
        finally:
            over = threading.Timer(seconds, lambda: self._events.put(Disturbed(time.time(), what, over=True)))
            over.daemon = True
            over.start()

    def deleting(self, job: str) -> None:
        """Say that the job with this UID is about to be deleted."""
        self._events.put(Deleted(time.time(), job))

    def ended(self, pod: dict[str, Any], status: int) -> None:
        """Say that a program that keeps no journal is about to end."""
        uid = pod["metadata"]["uid"]
        number = int(pod["metadata"]["name"].rpartition("-")[2])
        worked = Worked(time.time(), owner(pod), uid, generation=number, began=True, status=status)
        self._events.put(worked)

    def _follow(self, kind: str, path: str, rest: Rest) -> None:
        known: dict[str, Any] = {}
        blind = False
        while not self._over.is_set():
            try:
                listed = rest.get(path)
                self._relisted(kind, listed["items"] or [], known)
                if blind:
                    self._events.put(Disturbed(time.time(), f"unseen: {kind}", over=True))
                    blind = False
                version = listed["metadata"]["resourceVersion"]
                for event in rest.watch(path, version, _WATCH_SECONDS):
                    self._tell(kind, event["object"], known, gone=event["type"] == "DELETED")
            except (OSError, ClusterError, HTTPException, ValueError):
                if not blind:
                    self._events.put(Disturbed(time.time(), f"unseen: {kind}"))
                    blind = True
                self._over.wait(_RETRY_SECONDS)

    def _relisted(self, kind: str, items: list[dict[str, Any]], known: dict[str, Any]) -> None:
        there = {item["metadata"]["uid"] for item in items}
        for uid in [uid for uid in known if uid not in there]:
            self._tell(kind, known[uid], known, gone=True)
        for item in items:
            before = known.get(item["metadata"]["uid"], {"metadata": {}})
            if before["metadata"].get("resourceVersion") != item["metadata"]["resourceVersion"]:
                self._tell(kind, item, known, gone=False)

    def _tell(self, kind: str, item: dict[str, Any], known: dict[str, Any], *, gone: bool) -> None:
        if kind != "HorovodJob" and _LABEL not in item["metadata"].get("labels", {}):
            return
        item["metadata"].pop("managedFields", None)
        known[item["metadata"]["uid"]] = item
        if gone:
            del known[item["metadata"]["uid"]]
        self._events.put(Seen(time.time(), {**item, "kind": kind}, gone))

    def _judge_all(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            with suppress(queue.Empty):
                while True:
                    self._take(self._events.get_nowait())
            for stamp in self._stamps.read(self._owners):
                self._take(stamp)
            self._take(Look(time.time()))

    def _take(self, event: Event) -> None:
        if not isinstance(event, Look):
            self._log.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")
        with self._lock:
            self._judge.take(event)
            if isinstance(event, Seen) and event.body["kind"] in ("HorovodJob", "Pod"):
                kept, uid = self._of(event.body["kind"]), event.body["metadata"]["uid"]
                kept[uid] = dict(event.body)
                self._owners[uid] = owner(event.body)
                if event.gone:
                    del kept[uid]

    def _of(self, kind: str) -> dict[str, dict[str, Any]]:
        return self._jobs if kind == "HorovodJob" else self._pods


@contextmanager
def onlooking_at_a_namespace(cluster: Any, folder: Path) -> Iterator[Onlooker]:
    """Make a namespace for jobs, and watch it meanwhile.

    Args:
        cluster: the harness's own.
        folder: takes what ranks write down, and the history.
    """
    namespace = cluster.create_namespace(f"watched-{uuid.uuid4().hex[:8]}")
    cluster.apply(idle_program(namespace))
    with journal(cluster, namespace, folder / "journal") as told:
        onlooker = Onlooker(cluster, namespace, Stamps(told.folder), folder / "history.jsonl")
        onlooker.start()
        try:
            yield onlooker
        finally:
            onlooker.close()
    cluster.delete_namespace(namespace)

"""The operator decides by what it was told last: late, in any order, and after its own writes' answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import horovod_jobs as jobs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.cluster.store import Store


@dataclass
class LateCluster(VirtualCluster):
    """A cluster whose events come late, in any order and beside old lists, until it is `calm`.

    Answers to the operator's own writes come at once. Attributes:
        data: draws what comes when.
        calm: whether everything has come.
    """

    data: Any = None
    calm: bool = False
    version: int = 0
    store: Store = field(init=False)
    shown: dict[str, d.Pod] = field(default_factory=dict)
    under_way: list[tuple[str, dict]] = field(default_factory=list)
    lists: list[tuple[int, list[dict]]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = Store(lambda raw: raw["pod"], lambda: 0.0)

    def visible(self) -> Mapping[str, d.Pod]:
        self.notice()
        if self.calm:
            arrived, self.under_way = self.under_way, []
        else:
            some = self.data.draw(st.lists(st.integers(0, 20), max_size=4))
            arrived = [self.under_way.pop(i % len(self.under_way)) for i in some if self.under_way]
            if self.lists and self.data.draw(st.integers(0, 3)) == 0:
                self.list(self.data.draw(st.sampled_from(self.lists[-3:])))
        for kind, raw in arrived:
            (self.store.remove if kind == "DELETED" else self.store.put)(raw)
        found = {pod.name: pod for pod in self.store.kept.values()}
        return {
            name: replace(pod, deleting=True) if pod.uid in self.deleted else pod
            for name, pod in found.items()
        }

    def list(self, found: tuple[int, list[dict]]) -> None:
        version, items = found
        for raw in items:
            self.store.put(raw)
        self.store.sweep({f"a/{raw['metadata']['name']}" for raw in items}, version)

    def notice(self) -> None:
        """Give what has changed its version, and send its event."""
        for name in sorted({*self.pods, *self.shown}):
            pod = self.pods.get(name)
            if pod != self.shown.get(name):
                self.version += 1
                kind = "DELETED" if pod is None else "MODIFIED"
                self.under_way.append((kind, self.raw(pod or self.shown[name])))
                self.shown = {**self.shown, name: pod} if pod else _without(self.shown, name)
                if len(self.lists) < 50:
                    self.lists.append((self.version, [self.raw(each) for each in self.shown.values()]))

    def raw(self, pod: d.Pod) -> dict:
        """Return a pod as it is now; older ones keep the version of their last change in lists, too."""
        self.changed = getattr(self, "changed", {})
        known, version = self.changed.get(pod.name, (None, 0))
        if known != pod:
            version = self.version
            self.changed[pod.name] = pod, version
        about = {"namespace": "a", "name": pod.name, "resourceVersion": str(version)}
        return {"metadata": about, "pod": pod}

    def _create(self, manifest: Mapping[str, Any]) -> bool:
        named = manifest["metadata"].get("labels", {})
        if manifest["kind"] == "Pod":
            name = d.read_pod({**manifest, "status": {}}, self.job.name)
            assert name is not None
            twins = [pod.name for pod in self.pods.values() if pod.host == name.host and pod.alive]
            assert twins == [], (named, "is there already")
        done = super()._create(manifest)
        if done and manifest["kind"] == "Pod":
            self.notice()
            self.store.put(self.raw(self.pods[manifest["metadata"]["name"]]))
        return done

    def _delete(self, name: str, uid: str, grace: int | None) -> None:
        super()._delete(name, uid, grace)
        self.deleted.add(uid)
        self.notice()


def _without(pods: dict[str, d.Pod], name: str) -> dict[str, d.Pod]:
    return {each: pod for each, pod in pods.items() if each != name}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_comes_late_no_pod_is_made_twice_and_none_is_forgotten(data):
    policy = {"backoffLimit": 1000, "nodeLostSeconds": 5}
    body = jobs.body(jobs.group("a", 2), jobs.group("b", 1), runPolicy=policy)
    it = LateCluster(body, {"n0": 3, "n1": 3}, length=30, data=data)
    for _ in range(data.draw(st.integers(5, 40))):
        event = data.draw(st.sampled_from(["look", "look", "tick", "kill", "evict", "node"]))
        living = sorted(pod.name for pod in it.pods.values() if pod.alive and pod.node)
        if event == "kill" and living:
            it.kill(data.draw(st.sampled_from(living)))
        elif event == "evict" and living:
            it.evict(data.draw(st.sampled_from(living)))
        elif event == "node":
            it.node("n1", ready=not it.nodes["n1"].ready)
        elif event == "tick":
            it.tick()
        else:
            it.operate()
    it.node("n1", ready=True)
    it.calm = True
    it.settle(2000)
    assert it.progress.succeeded
    assert it.alive() == set()


def test_what_is_older_than_what_is_known_is_passed_over():
    store = Store(lambda raw: raw["metadata"]["resourceVersion"], lambda: 0.0)

    def item(version: int) -> dict:
        return {"metadata": {"namespace": "a", "name": "x", "resourceVersion": str(version)}}

    assert store.put(item(5))
    assert not store.put(item(4))
    assert not store.put(item(5)), "the event of a write whose answer came first"
    assert not store.remove(item(3)), "an earlier incarnation"
    assert store.kept == {"a/x": "5"}
    assert store.sweep(set(), 4) == [], "a list that was made before it was written"
    assert store.remove(item(6))
    assert not store.put(item(5)), "the answer to a write that comes after its object has gone"
    assert store.kept == {}
    assert store.put(item(7))
    assert store.sweep(set(), 8) == ["7"], "gone, and nobody had told of it"
    assert not store.put(item(7)), "the answer to a question that was asked before that list was made"
    assert store.put(item(9)), "another one of its name"


def test_what_has_gone_is_remembered_for_as_long_as_an_answer_may_take():
    now = [0.0]
    store = Store(lambda raw: raw["metadata"]["resourceVersion"], lambda: now[0])
    item = {"metadata": {"namespace": "a", "name": "x", "resourceVersion": "5"}}
    store.put(item)
    store.remove(item)
    store.sweep(set(), 5)
    assert not store.put(item)
    now[0] += 3600.0
    store.sweep(set(), 5)
    assert store._gone == {}

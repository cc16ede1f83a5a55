"""A node that refuses pods for a reason that the planner does not know is left out of the next plans."""

import api_server
import horovod_jobs as jobs
from operator_in_memory import JOB, conditions, running, until
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import AvoidNode, admission, members
from gradsieve_operator.placement.cluster import pinned_node


def cluster(nodes: int, *groups: dict, closed: set[str], room: int = 3, **spec) -> VirtualCluster:
    names = {f"n{index}": room for index in range(nodes)}
    return VirtualCluster(jobs.body(*groups, **spec), names, length=10**6, closed=closed)


def nodes(it: VirtualCluster) -> set[str]:
    return {pod.node for pod in it.pods.values() if pod.alive}


def tried(it: VirtualCluster, seconds: int) -> list[str]:
    """Let time pass; returns the nodes that pods were planned for, in their order, repetitions left out."""
    found: list[str] = []
    for _ in range(seconds):
        it.live(1)
        planned = sorted({pod.pinned for pod in it.pods.values()})
        found += [name for name in planned if [name] != found[-1:]]
    return found


def test_a_gang_that_one_node_refuses_is_withdrawn_whole_and_starts_on_the_others():
    it = cluster(3, closed={"n0"}, room=2)
    it.live(5)
    assert {pod.pinned for pod in it.pods.values()} == {"n0", "n1"}
    it.live(7)
    assert it.pods == {}
    it.live(15)
    assert it.progress.running
    assert nodes(it) == {"n1", "n2"}
    assert {name.rsplit("-", 1)[1] for name in it.alive()} == {"2"}


def test_a_gang_finds_the_only_node_that_takes_it_however_many_refuse():
    it = cluster(10, closed={f"n{index}" for index in range(9)})
    assert tried(it, 1000) == [f"n{index}" for index in range(10)]
    assert it.progress.running


def test_a_node_that_refuses_for_a_while_only_takes_the_gang_later():
    it = cluster(1, closed={"n0"})
    it.live(600)
    said = [decision.admitted.reason for decision in it.said if decision.admitted]
    assert {"PlaceTaken", "NoPlace"} <= set(said)
    it.closed.clear()
    it.live(330)
    assert it.progress.running


def test_nodes_are_not_blamed_while_nobody_schedules():
    it = cluster(2, closed=set())
    it.scheduling = False
    it.live(300)
    assert len(it.made) > 3
    assert not [action for said in it.said for action in said.actions if isinstance(action, AvoidNode)]
    it.scheduling = True
    it.live(130)
    assert it.progress.running


def test_a_node_that_turns_a_bound_pod_away_is_left_out_of_the_next_plan():
    it = cluster(2, closed=set(), room=3)
    it.live(1)
    it.turn_away("digits-worker-0-1")
    it.live(10)
    assert it.progress.running
    assert nodes(it) == {"n0", "n1"}  # its group keeps off the node, the coordinator need not
    assert {pod.node for pod in it.pods.values() if pod.group == "worker"} == {"n1"}


def test_a_replacement_that_one_node_refuses_is_made_on_another():
    it = cluster(4, jobs.group("worker", 2, minReplicas=1), closed=set(), room=1)
    it.live(10)
    lost = next(pod for pod in it.pods.values() if pod.host == "worker-1")
    it.closed = {lost.node}
    it.kill(lost.name)
    it.live(40)
    assert it.progress.running
    assert it.rosters[-1][1] == ("worker-0", "worker-1")
    assert nodes(it) == {"n0", "n1", "n3"}
    assert it.progress.restarts == 1


def test_each_pod_that_was_not_taken_is_told_to_the_planner_with_its_node_and_the_scheduler_s_words():
    it = cluster(2, closed={"n0"}, room=2)
    it.live(11)
    told = [action for said in it.said for action in said.actions if isinstance(action, AvoidNode)]
    words = "0/3 nodes are available"
    assert told == [AvoidNode("coordinator", "n0", words), AvoidNode("worker", "n0", words)]


_CPU = {"resources": {"requests": {"cpu": "3"}}}
"""Nearly a node: one pod on each."""


def schedule(server, *, closed: str) -> None:
    """Do as a scheduler does that may bind nothing to one node, for a reason of its own."""
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "too many volumes",
    }
    for name, raw in server.all("v1/pods").items():
        node = pinned_node(raw["spec"])
        change = {"status": {"conditions": [why]}} if node == closed else {"spec": {"nodeName": node}}
        server.objects["v1/pods", "research", name].patch(change)


async def test_the_operator_plans_past_a_node_that_refuses_and_keeps_no_other_tenant_out(server, monkeypatch):
    monkeypatch.setattr(members, "UNSCHEDULABLE_SECONDS", 0.5)
    monkeypatch.setattr(admission, "_FIRST_PAUSE", 0.1)
    launcher = {"template": {"spec": {"containers": [{"name": "c", "image": "i", **_CPU}]}}}
    for name in ("digits", "rival"):
        group = jobs.group("worker", 1, container=_CPU)
        server.objects[JOB, "research", name] = jobs.body(group, name=name, launcher=launcher)
    server.objects["v1/nodes", None, "n4"] = api_server.node("n4")

    def said(name: str, words: str) -> bool:
        schedule(server, closed="n1")
        admitted = conditions(server, name).get("Admitted", {})
        return words in (admitted.get("reason"), *admitted.get("message", "").partition("too many volumes"))

    async with running() as operator:
        await until(lambda: said("digits", "Placed") or said("rival", "Placed"))
        other = next(name for name in ("digits", "rival") if said(name, "Placed"))
        (hurt,) = {"digits", "rival"} - {other}
        # Its pods are tried on the node that refuses one by one; then it waits without any.
        await until(lambda: said(hurt, "too many volumes") and said(hurt, "NoPlace"))
        assert {name.split("-")[0] for name in server.all("v1/pods")} == {other}
        server.objects[JOB, "research", other].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", other))
        await until(lambda: said(hurt, "Placed"))
    assert "n1" not in {pinned_node(pod["spec"]) for pod in server.all("v1/pods").values()}


async def test_the_operator_sees_whom_another_pod_keeps_away_before_it_plans(server):
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {},
        "labelSelector": {"matchExpressions": [{"key": "gradsieve.io/role", "operator": "Exists"}]},
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = {"nodeName": "n1", "containers": [], "affinity": {"podAntiAffinity": required}}
    about = {"name": "guard", "namespace": "other", "resourceVersion": "1"}
    server.objects["v1/pods", "other", "guard"] = {"metadata": about, "spec": spec}
    for number in (1, 2, 3):
        labels = {"kubernetes.io/hostname": f"n{number}"}
        server.objects["v1/nodes", None, f"n{number}"].patch({"metadata": {"labels": labels}})
    server.objects[JOB, "research", "digits"] = jobs.body(jobs.group("worker", 2, container=_CPU))
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert {pinned_node(pod["spec"]) for pod in server.all("v1/pods").values()} == {"n2", "n3"}

"""Looking, deciding and acting together, against an API server in memory."""

import asyncio

import horovod_jobs as jobs
import kmock as kmock_library
import pytest
from api_server import target
from operator_in_memory import JOB, admitted, bind, change_record, conditions, recorded, running, until

POLICY = "gradsieve.io/v1alpha1/compressionpolicies"
CHILDREN = {
    "v1/serviceaccounts": {"digits"},
    "v1/configmaps": {"digits"},
    "v1/services": {"digits"},
    "networking.k8s.io/v1/networkpolicies": {"digits"},
    "v1/secrets": {"digits-coordinator-tls", "digits-operator-tls", "digits-workers-tls"},
}


def submit(server, *groups, **spec) -> None:
    server.objects[JOB, "research", "digits"] = jobs.body(*groups, **spec)


def reasons(server) -> list[str]:
    return [event["reason"] for event in server.all("v1/events").values()]


async def test_a_job_gets_all_of_its_children_and_is_admitted_once_they_are_bound(server):
    submit(server)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        assert {kind: set(server.all(kind)) for kind in CHILDREN} == CHILDREN
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Binding")
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        await until(lambda: reasons(server).count("Placed") == 1)  # posted when the status is written
    order = [
        write.rpartition("/")[2]
        for write in server.writes
        if write.startswith("POST") and "events" not in write
    ]
    assert order[:7] == ["digits"] * 4 + [
        "digits-coordinator-tls",
        "digits-operator-tls",
        "digits-workers-tls",
    ]
    assert order[7:10] == ["digits-coordinator-1", "digits-worker-0-1", "digits-worker-1-1"]
    assert reasons(server).count("Binding") == 1  # Admitted and Running say the same


async def test_a_job_without_room_creates_nothing_and_says_what_is_missing(server):
    big = {"resources": {"requests": {"cpu": "3"}}}
    submit(server, jobs.group("worker", 4, container=big))
    async with running():
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "NoPlace")
        assert server.all("v1/pods") == server.all("v1/secrets") == {}
        assert "worker needs 4 pods of cpu 3" in conditions(server)["Admitted"]["message"]


async def test_an_operator_that_may_not_read_nodes_refuses_to_plan_and_starts_what_needs_no_plan(server):
    submit(server)
    server.objects[JOB, "research", "free"] = jobs.body(name="free", scheduling={"gang": "None"})
    async with running(sees_nodes=False):
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "InvalidSpec")
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert "GRADSIEVE_PLAN_NODES=false" in conditions(server)["Admitted"]["message"]
    assert {name.split("-")[0] for name in server.all("v1/pods")} == {"free"}


async def test_two_jobs_never_get_the_same_place(server):
    big = {"resources": {"requests": {"cpu": "3"}}}
    for name in ("one", "two"):
        server.objects[JOB, "research", name] = jobs.body(jobs.group("worker", 2, container=big), name=name)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        await asyncio.sleep(1.0)
        assert len({name.split("-")[0] for name in server.all("v1/pods")}) == 1


async def test_a_pod_that_is_refused_takes_the_others_with_it(server):
    def quota(request):
        if target(request).endswith("pods/digits-worker-1-1"):
            raise kmock_library.KubernetesError(
                status=403, reason="Forbidden", message="exceeded quota: pods=2"
            )

    server.before = quota
    submit(server)
    async with running():
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Refused")
        assert "exceeded quota" in conditions(server)["Admitted"]["message"]
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert all(name.endswith(("-2", "-coordinator-2")) for name in server.all("v1/pods"))


async def test_what_is_deleted_is_deleted_by_its_uid(server):
    submit(server)
    seen = []

    def look(request):
        if request.method.value.upper() == "DELETE":
            seen.append(request.data)

    server.before = look
    async with running() as operator:
        await until(lambda: len(server.all("v1/pods")) == 3)
        server.objects[JOB, "research", "digits"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "digits"))
        await until(lambda: not server.all("v1/pods"))
    assert len(seen) == 3
    assert all(options["preconditions"]["uid"].startswith("uid-") for options in seen)
    assert all(options["propagationPolicy"] == "Background" for options in seen)


async def test_a_job_that_was_deleted_is_left_alone(server):
    submit(server)
    server.objects[JOB, "research", "digits"].patch(
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    async with running():
        await asyncio.sleep(1.0)
    assert server.writes == []


async def test_a_missing_policy_is_named_in_the_status(server):
    submit(server, compression={"policyRef": {"name": "thin"}})
    async with running():
        await until(lambda: "Admitted" in conditions(server))
        assert conditions(server)["Admitted"]["reason"] == "InvalidSpec"
        await until(lambda: reasons(server) == ["InvalidSpec"])
    assert "there is no CompressionPolicy 'thin'" in conditions(server)["Admitted"]["message"]
    (event,) = server.all("v1/events").values()
    assert (event["type"], event["message"]) == ("Warning", conditions(server)["Admitted"]["message"])


async def test_a_started_job_goes_on_with_what_it_has_when_policy_and_operator_have_gone(server):
    policy = (POLICY, "research", "thin")
    spec = {"algorithm": "TopK", "densityPermille": 10}
    server.objects[policy] = {
        "metadata": {"name": "thin", "namespace": "research", "resourceVersion": "1"},
        "spec": spec,
    }
    submit(server, compression={"policyRef": {"name": "thin"}})
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    server.objects[policy].delete()
    async with running():
        await until(lambda: conditions(server)["PlanConverged"]["reason"] == "InvalidSpec")
        await until(lambda: "InvalidSpec" in reasons(server))
    assert conditions(server)["Admitted"]["reason"] == "Placed"
    assert recorded(server).compression.manifest() == spec
    said = [each for each in server.all("v1/events").values() if each["reason"] == "InvalidSpec"]
    assert [each["type"] for each in said] == ["Warning"]
    assert "there is no CompressionPolicy 'thin'" in said[0]["message"]


async def test_what_belongs_to_somebody_else_is_not_touched_and_named_in_the_status(server):
    about = {"name": "digits", "namespace": "research", "uid": "u", "resourceVersion": "1000"}
    mine = {"metadata": about, "data": {"train.py": "mine"}}
    server.objects["v1/configmaps", "research", "digits"] = mine
    submit(server)
    async with running():
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Refused")
        message = conditions(server)["Admitted"]["message"]
        assert message.startswith("ConfigMap digits is there already and does not belong to this job: wait")
        assert server.all("v1/configmaps")["digits"] == mine
        assert server.all("v1/pods") == {}
        server.objects["v1/configmaps", "research", "digits"].delete()
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert server.all("v1/configmaps")["digits"]["metadata"]["ownerReferences"][0]["name"] == "digits"


async def test_a_pod_of_another_job_that_has_the_name_is_left_alone_and_the_next_name_taken(server):
    group = jobs.group("b-c", 1)
    server.objects[JOB, "research", "a-b"] = jobs.body(jobs.group("c", 1), name="a-b")
    async with running() as operator:
        await until(lambda: "a-b-c-0-1" in server.all("v1/pods"))
        server.objects[JOB, "research", "a"] = jobs.body(group, name="a")
        operator.queue.add(("research", "a"))
        await until(lambda: "a-b-c-0-2" in server.all("v1/pods"))
    pods = server.all("v1/pods")
    owners = {name: pods[name]["metadata"]["ownerReferences"][0]["name"] for name in pods}
    assert {name: owner for name, owner in owners.items() if "-c-0-" in name} == {
        "a-b-c-0-1": "a-b",
        "a-b-c-0-2": "a",
    }
    said = [event["message"] for event in server.all("v1/events").values() if event["reason"] == "Refused"]
    assert "does not belong to this job but to HorovodJob a-b" in said[0]


async def test_a_running_job_s_missing_network_policy_is_made_anew(server):
    submit(server)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        server.objects["networking.k8s.io/v1/networkpolicies", "research", "digits"].delete()
    async with running():
        await until(lambda: "digits" in server.all("networking.k8s.io/v1/networkpolicies"))


async def test_places_stay_held_for_a_job_that_was_overtaken_before_the_operator_restarted(server):
    def cpu(count):
        return {"resources": {"requests": {"cpu": count}}}

    taken = {"nodeName": "n1", "containers": [{"name": "c", **cpu("2")}]}
    named = {"name": "other", "namespace": "research", "resourceVersion": "1"}
    other = {"metadata": {**named, "labels": {"gradsieve.io/job": "other"}}, "spec": taken}
    server.objects["v1/pods", "research", "other"] = other
    big = jobs.body(jobs.group("worker", 3, container=cpu("3")), name="big")
    server.objects[JOB, "research", "big"] = big
    async with running():
        await until(lambda: "record" in server.all(JOB)["big"].get("status", {}))
    change_record(server, "big", overtaken=3)
    for number in range(10):
        name = f"small-{number}"
        server.objects[JOB, "research", name] = jobs.body(jobs.group("worker", container=cpu("2")), name=name)
    async with running():
        await until(lambda: all(admitted(server, name) == "NoPlace" for name in server.all(JOB)))
    small = server.all(JOB)["small-0"]["status"]["conditions"]
    message = next(each["message"] for each in small if each["type"] == "Admitted")
    assert "Free places are held for research/big" in message
    assert set(server.all("v1/pods")) == {"other"}


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_failing_at_every_write_in_turn_leads_to_the_same_children(server, lost, monkeypatch):
    monkeypatch.setattr("gradsieve_operator.cluster.queue._LONGEST_PAUSE", 0.05)
    submit(server)
    failed: set[str] = set()

    def once(request):
        # A pod's name ends with a generation, which is never used again.
        path = f"{request.method.value} {target(request).rstrip('0123456789')}"
        if path not in failed:
            failed.add(path)
            raise kmock_library.KubernetesError(status=500, reason="InternalError", message="cut off")

    setattr(server, lost, once)
    async with running():
        await until(lambda: {kind: set(server.all(kind)) for kind in CHILDREN} == CHILDREN, 60)
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Binding", 60)
        await until(lambda: len(server.all("v1/pods")) == 3, 60)
        names = sorted(server.all("v1/pods"))
    hosts = [name.rsplit("-", 1)[0] for name in names]
    assert set(hosts) == {"digits-coordinator", "digits-worker-0", "digits-worker-1"}
    assert len(failed) >= 8

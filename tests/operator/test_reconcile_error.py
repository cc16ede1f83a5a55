"""A job that the operator fails to work on says so, can be suspended all the same, and is worked on again."""

import json

import horovod_jobs as jobs
import kmock as kmock_library
import pytest
from operator_in_memory import JOB, bind, change_record, conditions, running, until

from gradsieve_operator.cluster import reconciler, trouble

KEY = (JOB, "research", "digits")
READS_SECRETS = "get /api/v1/namespaces/research/secrets/digits-coordinator-tls"
SAYS = "AttributeError: 'NoneType' object has no attribute 'began'"


@pytest.fixture
def broken(monkeypatch):
    """Return the jobs at whose decisions the operator fails, and how often it did; tests change the first."""
    names: set[str] = set()
    times: list[str] = []
    decide = reconciler.decide

    def fail(world):
        if world.job.name in names:
            times.append(world.job.name)
            return None.began
        return decide(world)

    monkeypatch.setattr(reconciler, "decide", fail)
    return names, times


def submit(server, name: str = "digits") -> None:
    server.objects[JOB, "research", name] = jobs.body(name=name)


def change(server, operator, **content) -> None:
    """Change the job, as its author does: looks that are under way notice by its version."""
    server.objects[KEY].patch({**content, "metadata": {"resourceVersion": server.version()}})
    operator.queue.add(("research", "digits"))


async def is_placed(server, operator) -> None:
    submit(server)
    operator.queue.add(("research", "digits"))
    await until(lambda: len(server.all("v1/pods")) == 3)
    bind(server)
    await says(server, operator, "Admitted", reason="Placed")


async def says(server, operator, kind: str, **wanted: str) -> dict:
    """Have the job looked at until that condition is so; returns it."""

    def so() -> bool:
        operator.queue.add(("research", "digits"))
        return wanted.items() <= conditions(server).get(kind, {}).items()

    await until(so)
    return conditions(server)[kind]


def events(server, reason: str) -> list[tuple[str, str]]:
    found = server.all("v1/events").values()
    return [(each["type"], each["message"]) for each in found if each["reason"] == reason]


def say_that_ranks_run(server) -> None:
    found = conditions(server)
    found["Running"] = {**found["Running"], "status": "True", "reason": "Running"}
    server.objects[KEY].patch({"status": {"conditions": list(found.values())}})


async def test_it_is_said_in_its_status_and_once_as_an_event_until_it_works_again(server, broken):
    names, times = broken
    async with running() as operator:
        await is_placed(server, operator)
    say_that_ranks_run(server)
    names.add("digits")
    async with running() as operator:
        found = await says(server, operator, "ReconcileError", status="True", reason="UnexpectedError")
        assert found["message"] == SAYS
        unknown = conditions(server)["Running"]
        assert (unknown["status"], unknown["reason"]) == ("Unknown", "ReconcileError")
        assert SAYS in unknown["message"]
        await until(lambda: operator.queue.add(("research", "digits")) or len(times) >= 4)
        names.clear()
        await says(server, operator, "ReconcileError", status="False", reason="Reconciled")
        await until(lambda: events(server, "Reconciled") != [])
    assert events(server, "UnexpectedError") == [("Warning", SAYS)]
    assert conditions(server)["Running"]["reason"] == "Starting"


async def test_a_job_on_which_the_operator_never_failed_has_no_such_condition(server):
    async with running() as operator:
        await is_placed(server, operator)
    assert "ReconcileError" not in conditions(server)


async def test_it_can_be_suspended_and_other_jobs_go_on(server, broken):
    async with running() as operator:
        await is_placed(server, operator)
        broken[0].add("digits")
        change(server, operator, spec={"suspend": True})
        await until(lambda: not server.all("v1/pods"))
        submit(server, "other")
        operator.queue.add(("research", "other"))
        await until(lambda: len(server.all("v1/pods")) == 3)


async def test_a_suspended_job_that_fails_keeps_no_hands_off_pods_of_others(server, broken):
    """Neither those of another job that bear its label, nor those of an earlier job of its name."""
    async with running() as operator:
        await is_placed(server, operator)
        pod = server.all("v1/pods")["digits-worker-0-1"]
        for name, uid in (("digits-worker-7-1", "uid-of-an-earlier-one"), ("mine", "")):
            owners = [{**pod["metadata"]["ownerReferences"][0], "uid": uid}] if uid else []
            about = {**pod["metadata"], "name": name, "uid": f"uid-{name}", "ownerReferences": owners}
            server.objects["v1/pods", "research", name] = {**pod, "metadata": about}
        broken[0].add("digits")
        change(server, operator, spec={"suspend": True})
        await until(lambda: len(server.all("v1/pods")) == 2)
    assert set(server.all("v1/pods")) == {"digits-worker-7-1", "mine"}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        pytest.param({"generation": 10**12}, "status.record.generation: is 1000000000000", id="count"),
        pytest.param({"started": "noon"}, "status.record.started: cannot be 'noon'", id="time"),
        pytest.param(
            {"compression": {"minDensityPermille": 9, "maxDensityPermille": 1}},
            "status.record.compression",
            id="densities",
        ),
    ],
)
async def test_a_record_that_was_changed_is_named_and_begins_again_when_the_job_is_suspended(
    server, record, words
):
    async with running() as operator:
        await is_placed(server, operator)
        change(server, operator, status={"record": json.dumps(record)})
        found = await says(server, operator, "ReconcileError", status="True")
        assert found["message"].startswith(words)
        assert found["message"].endswith(
            "suspend the job and resume it: it then starts with new pods and a new record"
        )
        change(server, operator, spec={"suspend": True})
        await says(server, operator, "Suspended", status="True")
        assert conditions(server)["ReconcileError"]["status"] == "False"
        change(server, operator, spec={"suspend": False})
        await until(lambda: len(server.all("v1/pods")) == 3)


async def test_times_that_are_still_to_come_hold_up_nothing(server):
    future = 253402300799.0
    async with running() as operator:
        await is_placed(server, operator)
        change(server, operator, spec={"runPolicy": {"activeDeadlineSeconds": 1}})
        change_record(server, started=future, retry_at=future)
        operator.queue.add(("research", "digits"))
        await says(server, operator, "Failed", reason="DeadlineExceeded")


async def test_what_the_api_server_refuses_for_good_is_said_at_once(server):
    words = 'secrets is forbidden: User "operator" cannot get resource "secrets"'
    async with running() as operator:
        await is_placed(server, operator)
    server[READS_SECRETS] << kmock_library.KubernetesError(status=403, reason="Forbidden", message=words)
    async with running() as operator:
        found = await says(server, operator, "ReconcileError", status="True")
        await until(lambda: events(server, "UnexpectedError") != [])
    assert found["message"] == words
    assert events(server, "UnexpectedError") == [("Warning", words)]


async def test_what_the_api_server_fails_at_is_said_when_that_lasts(server, monkeypatch):
    async with running() as operator:
        await is_placed(server, operator)
    server[READS_SECRETS] << 503
    before = len(list(server))
    async with running() as operator:
        await until(lambda: sum("/secrets" in str(each.url) for each in list(server)[before:]) >= 4)
        assert "ReconcileError" not in conditions(server)
        monkeypatch.setattr(trouble, "_LASTING_SECONDS", 0.0)
        await says(server, operator, "ReconcileError", status="True")


async def test_conditions_of_others_leave_room_for_it(server, broken):
    submit(server)
    theirs = [
        {"type": f"Theirs{n}", "status": "True", "lastTransitionTime": None, "reason": "R", "message": ""}
        for n in range(16)
    ]
    server.objects[KEY].patch({"status": {"conditions": theirs}})
    async with running() as operator:
        await says(server, operator, "Admitted", status="False")
        assert len(conditions(server)) == 15
        broken[0].add("digits")
        await says(server, operator, "ReconcileError", status="True")
        assert len(conditions(server)) == 16

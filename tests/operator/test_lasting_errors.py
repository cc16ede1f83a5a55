"""An API server that goes on failing refuses: a webhook that it cannot reach is an error of its own."""

import horovod_jobs as jobs
import kmock as kmock_library
import pytest
from api_server import target
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster import executor as module

SAYS = 'failed calling webhook "w.example.com": connection refused'


@pytest.fixture
def broken(server):
    """Return the parts of paths whose writes fail; it is changed by the tests."""
    found: set[str] = set()

    def fail(request):
        if any(part in target(request) for part in found):
            raise kmock_library.KubernetesError(status=500, reason="InternalError", message=SAYS)

    server.before = fail
    return found


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(module, "_FAILING_SECONDS", 1.0)


def refuse_twice(server, part: str, words: str) -> list[str]:
    """Have the first two writes to paths with ``part`` refused; returns those, as they come."""
    refused = []

    def unready(request):
        if part in target(request) and len(refused) < 2:
            refused.append(target(request))
            raise kmock_library.KubernetesError(status=403, reason="Forbidden", message=words)

    server.before = unready
    return refused


def deleted(server) -> list[str]:
    return [write.rpartition("/")[2] for write in server.writes if write.startswith("DELETE")]


def submit(server):
    server.objects[JOB, "research", "digits"] = jobs.body()


async def test_a_half_made_gang_is_withdrawn_says_why_and_starts_once_the_webhook_is_well(
    server, broken, soon
):
    broken.add("pods/digits-worker-1")
    submit(server)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 2)
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Refused")
        admitted = conditions(server)["Admitted"]
        assert (admitted["status"], admitted["message"]) == ("False", SAYS)
        await until(lambda: set(deleted(server)) >= {"digits-coordinator-1", "digits-worker-0-1"})
        broken.clear()
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")


async def test_while_it_goes_on_failing_the_next_half_made_gang_goes_at_once(server, broken, soon):
    broken.add("pods/digits-worker-1")
    submit(server)
    async with running():
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Refused")
        await until(lambda: len(deleted(server)) >= 2)
        before = len(server.writes)
        await until(lambda: len(deleted(server)) >= 4)
    writes = server.writes[before:]
    second = writes[: next(index for index, write in enumerate(writes) if write.startswith("DELETE"))]
    assert sum("digits-worker-1" in write for write in second) == 1


async def test_a_job_of_which_nothing_can_be_made_says_why(server, broken, soon):
    broken.add("configmaps")
    submit(server)
    async with running():
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "Refused")
        assert conditions(server)["Admitted"]["message"] == SAYS
        broken.clear()
        await until(lambda: len(server.all("v1/pods")) == 3)


async def test_an_error_that_does_not_last_spoils_nothing(server, broken):
    broken.add("pods/digits-worker-1")
    submit(server)
    async with running():
        await until(lambda: sum("digits-worker-1" in write for write in server.writes) == 2)
        broken.clear()
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert {"digits-coordinator-1", "digits-worker-0-1"} < set(server.all("v1/pods"))
    assert deleted(server) == []


async def test_a_running_job_says_why_it_gets_no_replacement(server, broken, soon):
    submit(server)
    async with running() as operator:
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        broken.add("pods/digits-worker-1")
        server.objects["v1/pods", "research", "digits-worker-1-1"].delete()
        operator.queue.add(("research", "digits"))
        await until(lambda: conditions(server)["Degraded"]["reason"] == "Refused")
        assert conditions(server)["Degraded"]["message"] == SAYS
        broken.clear()
        await until(lambda: len(server.all("v1/pods")) == 3)


@pytest.mark.parametrize(
    "words",
    [
        'pods is forbidden: User "operator" cannot create resource "pods" in API group ""',
        'pods "x" is forbidden: no matches for kind "HorovodJob" in version "v1"',
    ],
)
async def test_a_server_that_does_not_know_roles_or_kinds_yet_spoils_no_gang(server, words):
    refused = refuse_twice(server, "pods/digits-worker-1", words)
    submit(server)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert len(refused) == 2
    assert deleted(server) == []


async def test_a_kind_that_the_server_does_not_find_yet_is_no_trouble_worth_saying(server):
    words = 'services "digits" is forbidden: no matches for kind "HorovodJob" in version "v1"'
    refused = refuse_twice(server, "services/digits", words)
    submit(server)
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert len(refused) == 2
    assert "ReconcileError" not in conditions(server)

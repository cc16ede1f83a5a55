"""Secrets are not watched: they are read again before what depends on them, and after a write that failed."""

import datetime as dt
import time
from types import SimpleNamespace

import horovod_jobs as jobs
import pytest
from api_server import target
from operator_in_memory import JOB, admitted, bind, running, submit, until

from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster import memory, secrets
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.resources import certificate_secrets

KEY = ("research", "digits")
COORDINATOR, OPERATOR, WORKERS = (
    "digits-coordinator-tls",
    "digits-operator-tls",
    "digits-workers-tls",
)


@pytest.fixture
def skip(monkeypatch):
    """Return what makes Secrets older, as far as the operator knows, by so many seconds."""
    skipped = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(skipped))
    for module in (memory, secrets):
        monkeypatch.setattr(module, "time", clock)
    return skipped.append


def fill_nodes(server) -> None:
    """Let pods of somebody else's take all nodes."""
    for node in ("n1", "n2", "n3"):
        containers = [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]
        body = {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": containers}}
        server.objects["v1/pods", "research", f"on-{node}"] = body


def free_nodes(server) -> None:
    for node in ("n1", "n2", "n3"):
        server.objects["v1/pods", "research", f"on-{node}"].delete()


def made(server) -> int:
    return sum("on-" not in name for name in server.all("v1/pods"))


async def test_certificates_that_wait_for_places_are_read_before_the_first_pods(server, skip):
    def somebody(request):
        if "serviceaccounts" in target(request):
            server.before = lambda _: None
            fill_nodes(server)

    server.before = somebody
    submit(server, "digits", 2)
    async with running():
        await until(lambda: admitted(server, "digits") == "NoPlace")
        assert set(server.all("v1/secrets")) == {COORDINATOR, OPERATOR, WORKERS}
        skip(secrets.PROVEN_SECONDS)
        free_nodes(server)
        await until(lambda: made(server) == 3)


async def test_what_was_lost_between_two_writes_is_found_before_the_next_ones(server, skip):
    submit(server, "digits", 2)
    async with running() as operator:
        await until(lambda: made(server) == 3)
        bind(server)
        await until(lambda: admitted(server, "digits") == "Placed")
        before = set(server.all("v1/pods"))

        def somebody(request):
            if target(request).endswith(COORDINATOR):
                server.before = lambda _: None
                server.objects["v1/secrets", "research", WORKERS].delete()

        server.before = somebody
        server.objects["v1/secrets", "research", OPERATOR].delete()
        skip(600.0)
        operator.queue.add(KEY)
        await until(lambda: set(server.all("v1/secrets")) == {COORDINATOR, OPERATOR, WORKERS})
    assert set(server.all("v1/pods")) == before
    assert server.all(JOB)["digits"]["status"]["restartCount"] == 0


async def test_sessions_go_on_when_secrets_were_read_again_and_end_with_another_certificate():
    job, found = jobs.job(), Memory()

    def made(version: str) -> dict:
        issued = issue(job.name, job.namespace, ["worker-0"], dt.datetime.now(dt.UTC))
        return {
            each["metadata"]["name"]: {
                **each,
                "metadata": {**each["metadata"], "uid": "u", "resourceVersion": version},
            }
            for each in certificate_secrets(job, issued)
        }

    first = made("1")
    await secrets.note_secrets(job, found, first)
    context = secrets.operator_context(job, found)
    await secrets.note_secrets(job, found, first)
    assert secrets.operator_context(job, found) is context is not None
    await secrets.note_secrets(job, found, made("2"))
    assert secrets.operator_context(job, found) not in (None, context)

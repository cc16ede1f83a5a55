"""A Secret that somebody damages is put right, whatever was done to it, and not again and again at once."""

import base64
import time
from types import SimpleNamespace

import horovod_jobs as jobs
import pytest
from api_server import target
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster import memory, secrets
from gradsieve_operator.resources import held, read_secret

KEY = ("research", "digits")
OPERATOR, WORKERS = "digits-operator-tls", "digits-workers-tls"
GARBAGE = base64.b64encode(b"no key").decode()


@pytest.fixture
def skip(monkeypatch):
    """Return what makes Secrets older, as far as the operator knows, by so many seconds."""
    skipped = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(skipped))
    for module in (memory, secrets):
        monkeypatch.setattr(module, "time", clock)
    return skipped.append


async def placed(server) -> None:
    server.objects[JOB, "research", "digits"] = jobs.body()
    await until(lambda: len(server.all("v1/pods")) == 3)
    bind(server)
    await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")


def change(server, name: str, **data: str) -> None:
    """Do as somebody does who edits a Secret by hand."""
    named = {key.replace("_", "."): value for key, value in data.items()}
    server.objects["v1/secrets", "research", name].patch({"data": named})


def sound(server) -> bool:
    contents = {name: read_secret(jobs.job(), name, each) for name, each in server.all("v1/secrets").items()}
    return held(jobs.job(), contents).lost == ()


@pytest.mark.parametrize(("name", "added"), [(WORKERS, "tls_key"), (OPERATOR, "more_pem")])
async def test_what_was_added_to_one_that_is_written_again_goes(server, skip, name, added):
    async with running() as operator:
        await placed(server)
        before = set(server.all("v1/pods"))
        change(server, name, **{added: GARBAGE})
        change(server, OPERATOR, tls_key=GARBAGE)
        skip(600.0)
        operator.queue.add(KEY)
        await until(lambda: sound(server))
        await until(lambda: added.replace("_", ".") not in server.all("v1/secrets")[name]["data"])
        await until(lambda: conditions(server)["Degraded"]["status"] == "False")
    assert set(server.all("v1/pods")) == before


@pytest.mark.parametrize("started", [True, False])
async def test_one_that_is_damaged_as_soon_as_it_is_written_is_named_and_left_for_a_while(
    server, skip, started
):
    def webhook(request):
        if target(request).endswith(OPERATOR):
            request.data["data"]["tls.key"] = GARBAGE

    async with running() as operator:
        if started:
            await placed(server)
        server.before = webhook
        if started:
            change(server, OPERATOR, tls_key=GARBAGE)
            skip(600.0)
            operator.queue.add(KEY)
        else:
            server.objects[JOB, "research", "digits"] = jobs.body()
        kind = "Degraded" if started else "Admitted"
        await until(lambda: conditions(server).get(kind, {}).get("reason") == "Refused")
        assert f"Secret {OPERATOR} is damaged as soon as it is written" in conditions(server)[kind]["message"]
        assert len(server.all("v1/pods")) == (3 if started else 0)
        server.before = lambda _: None
        await until(lambda: sound(server) and len(server.all("v1/pods")) == 3)


async def test_after_a_failure_nobody_is_replaced_before_certificates_were_looked_at(server):
    async with running():
        await placed(server)
        change(server, WORKERS, **{"worker-1_key": GARBAGE})
        ended = {"terminated": {"exitCode": 2, "finishedAt": "2026-01-01T00:00:00Z"}}
        failed = {"status": {"phase": "Failed", "containerStatuses": [{"name": "train", "state": ended}]}}
        server.objects["v1/pods", "research", "digits-worker-1-1"].patch(failed)
        await until(lambda: len(server.all("v1/pods")) == 4)
        assert sound(server), "its replacement has the certificate that it may have failed for"
    assert server.all(JOB)["digits"]["status"]["restartCount"] == 1

"""A job's coordinator runs in a pod of its user's: whatever it answers, the operator and the job go on."""

import base64
import contextlib
import datetime as dt
import gc
import gzip
import json
import ssl
from dataclasses import replace

import horovod_jobs as jobs
import jsonschema
import psutil
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import json_schema, without_nulls
from operator_in_memory import JOB, bind, conditions, running, until
from virtual_cluster import VirtualCluster

from gradsieve_operator import contract
from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster.calls import Calls
from gradsieve_operator.cluster.coordinator import Coordinator, CoordinatorError
from gradsieve_operator.cluster.coordinator_status import read_status
from gradsieve_operator.cluster.fence import Fence
from gradsieve_operator.cluster.tls import context_of
from gradsieve_operator.decide import CoordinatorStatus
from gradsieve_operator.errors import SpecError
from gradsieve_operator.resources import certificate_secrets
from gradsieve_operator.schema import job_definition
from gradsieve_operator.status import job_status

WELL = {
    "generation": 3,
    "state": "Running",
    "registered": [{"host": "worker-0", "podUID": "u", "connected": True, "admitted": True}],
    "missing": ["worker-1"],
    "missingSeconds": {"worker-1": 2.5},
    "lostHosts": [],
    "message": "",
    "exitCode": None,
    "startedAt": "2026-01-01T00:00:00Z",
    "plan": {"generation": 2, "appliedGeneration": None},
    "telemetry": {
        "time": 1e9,
        "step": 7,
        "stepSeconds": 0.2,
        "waitSeconds": 0.1,
        "generation": 3,
        "ranks": [],
    },
    "committedStep": 5,
}
MIB = 1 << 20


def server_context(folder, secret) -> ssl.SSLContext:
    for name, value in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


@contextlib.asynccontextmanager
async def serving(port, folder, secret, answer):
    """Be the coordinator, with what the job's Secret holds and these answers to all calls."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=server_context(folder, secret)).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
def ask(port, tmp_path, monkeypatch):
    """Return what asks a coordinator that answers like that for its status."""
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    job = jobs.job()
    made = certificate_secrets(job, issue(job.name, job.namespace, ["worker-0"], dt.datetime.now(dt.UTC)))
    secrets = {secret["metadata"]["name"]: secret for secret in made}

    async def call(answer) -> CoordinatorStatus:
        context = context_of(secrets["digits-operator-tls"])
        calls = Calls(Fence(), contextlib.nullcontext)
        async with serving(port, tmp_path, secrets["digits-coordinator-tls"], answer), calls:
            return await Coordinator(calls, "127.0.0.1", context).status()

    return call


def says(body: bytes, **headers: str):
    async def answer(_request):
        return web.Response(body=body, headers={"Content-Type": "application/json", **headers})

    return answer


async def test_a_status_as_it_should_be_is_read(ask):
    found = await ask(says(json.dumps(WELL).encode()))
    assert (found.generation, found.state, found.connected) == (3, "Running", {"worker-0"})
    assert (found.missing, found.plan_generation, found.applied_plan) == (("worker-1",), 2, 0)
    assert (found.telemetry["step"], found.committed_step) == (7, 5)
    assert found.missing_seconds == {"worker-1": 2.5}


async def test_of_a_quiet_job_no_connection_is_kept_and_the_next_resumes_its_session(
    port, tmp_path, monkeypatch
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    job = jobs.job()
    made = certificate_secrets(job, issue(job.name, job.namespace, ["worker-0"], dt.datetime.now(dt.UTC)))
    secrets = {secret["metadata"]["name"]: secret for secret in made}
    resumed, connections = [], set()

    async def answer(request):
        resumed.append(request.get_extra_info("ssl_object").session_reused)
        connections.add(request.get_extra_info("peername"))
        return web.json_response(WELL)

    calls = Calls(Fence(), contextlib.nullcontext)
    context = context_of(secrets["digits-operator-tls"])
    coordinator = Coordinator(calls, "127.0.0.1", context, quiet=True)
    async with calls:
        async with serving(port, tmp_path, secrets["digits-coordinator-tls"], answer):
            for _ in range(3):
                await coordinator.status()
        async with serving(port, tmp_path, secrets["digits-coordinator-tls"], answer):
            await coordinator.status()
    assert resumed == [False, True, True, False], "another coordinator knows nothing of the sessions"
    assert len(connections) == 4


async def test_a_thousand_calls_leave_no_memory_behind(port, tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    job = jobs.job()
    made = certificate_secrets(job, issue(job.name, job.namespace, ["worker-0"], dt.datetime.now(dt.UTC)))
    secrets = {secret["metadata"]["name"]: secret for secret in made}
    calls = Calls(Fence(), contextlib.nullcontext)
    context = context_of(secrets["digits-operator-tls"])
    coordinator = Coordinator(calls, "127.0.0.1", context, quiet=True)
    served = serving(port, tmp_path, secrets["digits-coordinator-tls"], says(json.dumps(WELL).encode()))
    async with calls, served:
        for _ in range(200):
            await coordinator.status()
        before = held()
        for _ in range(1000):
            await coordinator.status()
        assert held() - before < 3 * MIB


def held() -> int:
    """Return how many bytes of memory this process holds for itself."""
    gc.collect()
    return psutil.Process().memory_full_info().uss


async def test_an_answer_without_end_is_not_read_to_the_end(ask):
    sent = 0

    async def answer(request):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while sent < 200 * MIB:
            await response.write(b" " * MIB)
            sent += MIB
        return response

    with pytest.raises(CoordinatorError, match="more than 2097152 bytes"):
        await ask(answer)
    assert sent < 20 * MIB, "what the buffers between take"


async def test_an_answer_is_never_inflated(ask):
    packed = gzip.compress(json.dumps(WELL).encode())
    with pytest.raises(CoordinatorError):
        await ask(says(packed, **{"Content-Encoding": "gzip"}))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(b"\xff\xfe{}", id="no text"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"generation": 1e999}', id="infinite"),
        pytest.param(b'{"generation": "three"}', id="text for a number"),
        pytest.param(b'{"generation": -1}', id="negative"),
        pytest.param(b'{"state": "Dancing"}', id="unknown state"),
        pytest.param(b'{"plan": 3}', id="number for an object"),
        pytest.param(b'{"registered": [{"connected": "perhaps", "host": "h"}]}', id="text for a flag"),
        pytest.param(b'{"registered": ["worker-0"]}', id="text for an object"),
        pytest.param(b'{"missing": [{}]}', id="object for a name"),
        pytest.param(b'{"missing": 7}', id="number for a list"),
        pytest.param(b'{"missing": ["%s"]}' % (b"h" * 64), id="long name"),
        pytest.param(b'{"missingSeconds": ["worker-1"]}', id="list for an object"),
        pytest.param(b'{"missingSeconds": {"worker-1": NaN}}', id="no number"),
        pytest.param(b'{"missingSeconds": {"%s": 1}}' % (b"h" * 64), id="long name of a missing host"),
    ],
)
async def test_what_is_no_status_is_as_no_answer(ask, body):
    with pytest.raises(CoordinatorError):
        await ask(says(body))


@pytest.mark.parametrize(
    "sample",
    [
        {"time": 1e300},
        {"step": 2**60},
        {"stepSeconds": "fast"},
        {"stepSeconds": float("nan")},
        {"waitSeconds": None},
        {"densityPermille": 1001},
        {"ranks": [{"host": "worker-0"}]},
        {"ranks": {"host": "worker-0", "stepSeconds": 1.0}},
    ],
    ids=str,
)
async def test_a_sample_that_no_status_can_show_is_left_out(ask, sample):
    found = await ask(says(json.dumps({**WELL, "telemetry": {**WELL["telemetry"], **sample}}).encode()))
    assert (found.state, found.telemetry) == ("Running", {})


@contextlib.asynccontextmanager
async def bound(server, port, folder, answer):
    """Run the operator with a job whose pods are bound, and whose coordinator answers so."""
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running() as operator:
        await until(lambda: len(server.all("v1/pods")) == 3)
        secret = server.all("v1/secrets")["digits-coordinator-tls"]
        async with serving(port, folder, secret, answer):
            bind(server)
            leader = server.objects["v1/pods", "research", "digits-coordinator-1"]
            leader.patch({"status": {"phase": "Running", "podIP": "127.0.0.1"}})
            operator.queue.add(("research", "digits"))
            yield operator


def events(server) -> set[tuple[str, str]]:
    return {(each["reason"], each["type"]) for each in server.all("v1/events").values()}


def refuses(status: int, words: str):
    """Answer for a coordinator that says how it is and takes nothing."""

    async def answer(request):
        if request.method == "GET":
            return web.json_response({**WELL, "generation": 0, "state": "Waiting", "missing": []})
        return web.json_response({"error": words}, status=status)

    return answer


async def test_what_the_coordinator_refuses_is_shown_in_its_words(server, port, tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    words = "roster: command must be a program and its arguments"
    async with bound(server, port, tmp_path, refuses(400, words)):
        await until(lambda: conditions(server)["Degraded"]["reason"] == "CoordinatorRefused")
        degraded = conditions(server)["Degraded"]
        assert (degraded["status"], words in degraded["message"]) == ("True", True)
        await until(lambda: ("CoordinatorRefused", "Warning") in events(server))


@pytest.mark.parametrize("status", [400, 500])
async def test_the_status_of_a_job_goes_on_while_its_coordinator_takes_nothing(
    server, port, tmp_path, monkeypatch, status
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    async with bound(server, port, tmp_path, refuses(status, "no")) as operator:
        await until(lambda: conditions(server)["RendezvousReady"]["reason"] == "Waiting")
        worker = server.objects["v1/pods", "research", "digits-worker-0-1"]
        worker.patch({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
        operator.queue.add(("research", "digits"))
        await until(lambda: server.all(JOB)["digits"]["status"]["ready"] == 1)


async def test_a_job_whose_coordinator_talks_nonsense_can_be_suspended(server, port, tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    nonsense = says(b'{"registered": [{"connected": true}], "telemetry": {"step": "many"}, "plan": []}')
    async with bound(server, port, tmp_path, nonsense) as operator:
        await until(lambda: conditions(server)["RendezvousReady"]["reason"] == "CoordinatorSilent")
        server.objects[JOB, "research", "digits"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "digits"))
        await until(lambda: not server.all("v1/pods"))


STATUS = job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
VALIDATOR = jsonschema.Draft202012Validator(json_schema(STATUS))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=70)
    | st.sampled_from([0, 1e-320, 2**53, 2**63, 10**400, 1e308, "worker-0", "Running", "m" * 50_000])
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))
PLACES = [(name,) for name in WELL] + [("telemetry", name) for name in WELL["telemetry"]]


def running_world():
    cluster = VirtualCluster(jobs.body(), {"n0": 3})
    while not cluster.progress.running:
        if cluster.operate().requeue_after != 0.0:
            cluster.tick()
    return cluster.world(), cluster.operate()


RUNNING = running_world()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=4))
def test_whatever_it_says_is_refused_or_fits_into_the_job_s_status(changes):
    said = json.loads(json.dumps(WELL))
    for place, value in changes:
        inner = said if len(place) == 1 else said["telemetry"]
        if isinstance(inner, dict):
            inner[place[-1]] = value
    try:
        coordinator = read_status(said)
    except SpecError:
        return
    world, decision = RUNNING
    status = job_status(replace(world, coordinator=coordinator), decision, {}, {})
    VALIDATOR.validate(without_nulls(status))

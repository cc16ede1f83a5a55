"""What an attacker with a worker's certificate, another job's, or none at all can do: nothing."""

import asyncio
import contextlib
import json
import socket
import ssl
import tempfile
from http.client import HTTPSConnection
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from control_job import ControlJob, roster

from gradsieve_hvd.control.certificates_command import command
from gradsieve_hvd.control.fields import MOST_BYTES
from gradsieve_hvd.control.tls import client_context

pytestmark = pytest.mark.timeout(200)

REGISTER = {"type": "register", "protocol": 1, "host": "h1", "podUID": "evil", "generation": 9, "slots": 1}


@pytest.fixture(scope="module")
def attacked():
    """A coordinator with a roster, and nobody there yet: one for all attacks, for none leaves a trace."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        job = ControlJob(Path(folder), ("h0", "h1"))
        try:
            coordinator = job.coordinator()
            coordinator.wait_for("listening", times=2)
            hosts = {"h0": "uid-0", "h1": "uid-1"}
            assert job.call("PUT", "/v1/roster", roster(3, ["echo", "good"], hosts))[0] == 200
            yield job
        finally:
            job.close()


@pytest.fixture
def waiting(attacked):
    """The attacked job; however it ended, its standing is as before and its coordinator lives."""
    coordinator = attacked.programs[-1]
    assert coordinator.process.poll() is None
    before = standing(attacked)
    yield attacked
    assert standing(attacked) == before
    assert coordinator.process.poll() is None


def standing(job):
    """Return the status without what is to change: how long hosts are missing, and what was refused."""
    status = job.status()
    return {**status, "missingSeconds": sorted(status["missingSeconds"]), "refusedReports": None}


def dial(job, party, *messages, folder=None):
    """Open an agent's connection and send messages; returns the answers and the code of its end."""

    async def run():
        try:
            return await talk()
        finally:
            # Connections that TLS has closed on one side go a moment later.
            await asyncio.sleep(0.25)

    async def talk():
        async with aiohttp.ClientSession() as session:
            context = client_context((folder or job.certificates) / party)
            url = f"https://{job.address}:{job.port}/v1/agent"
            async with session.ws_connect(url, ssl=context, server_hostname="coordinator") as channel:
                for message in messages:
                    if isinstance(message, bytes):
                        await channel.send_bytes(message)
                    else:
                        await channel.send_str(message if isinstance(message, str) else json.dumps(message))
                answers = [answer.json() async for answer in channel if answer.type is aiohttp.WSMsgType.TEXT]
                return answers, channel.close_code

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_worker_cannot_register_another_host(waiting):
    answers, code = dial(waiting, "h0", REGISTER)
    reason = "the certificate of host 'h0' cannot register host 'h1'"
    assert (answers, code) == ([{"type": "refused", "reason": reason}], 4403)


def test_a_worker_cannot_do_what_is_the_operators(waiting):
    mine = roster(9, ["evil"], {"h0": "uid-0"})
    calls = [
        ("PUT", "/v1/roster", mine),
        ("PUT", "/v1/plan", {"generation": 9}),
        ("POST", "/v1/stop", {"reason": "evil"}),
        ("GET", "/v1/status", None),
        ("POST", "/v1/agent", None),
        ("DELETE", "/v1/roster", None),
    ]
    for method, path, body in calls:
        code, said = waiting.call(method, path, body, party="h0")
        assert code == 403, (method, path, said)
        assert "worker 'h0'" in said["error"]


def test_the_operator_cannot_pass_for_an_agent(waiting):
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        dial(waiting, "operator", REGISTER)
    assert refusal.value.status == 403


def test_telemetry_is_not_taken_from_a_host_without_rank_zero(waiting):
    sample = {"generation": 3, "step": 1, "stepSeconds": 1, "waitSeconds": 0, "time": 1}
    before = waiting.status()["refusedReports"]
    assert waiting.call("POST", "/v1/telemetry", sample, party="h1")[0] == 403
    assert waiting.status()["refusedReports"] == before + 1


def test_the_plan_is_not_for_a_host_without_rank_zero(job):
    agents = [job.agent(host, "--uid", f"uid-{host}") for host in ("h0", "h1")]
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    hosts = {"h0": "uid-h0", "h1": "uid-h1"}
    assert job.call("PUT", "/v1/roster", roster(1, ["sh", "-c", "sleep 1000"], hosts))[0] == 200
    job.wait_for("Running")
    assert job.call("GET", "/v1/plan", party="h0") == (200, {"generation": 0})
    refusal = {"error": "plan for h1: rank 0 is not there"}
    assert job.call("GET", "/v1/plan", party="h1") == (403, refusal)
    assert [agent.process.poll() for agent in agents] == [None, None]


def get_status(job, context):
    with contextlib.closing(
        HTTPSConnection(job.address, job.port, context=context, timeout=20)
    ) as connection:
        connection.request("GET", "/v1/status")
        return connection.getresponse().read()


def test_without_certificate_there_is_no_connection(waiting):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(waiting.certificates / "h0" / "ca.crt")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get_status(waiting, context)


def test_another_jobs_certificate_is_worth_nothing(waiting, tmp_path):
    made = CliRunner().invoke(command, [str(tmp_path), "--host", "h0", "--coordinator", waiting.address])
    assert made.exit_code == 0
    for trusted in (waiting.certificates / "h0" / "ca.crt", tmp_path / "operator" / "ca.crt"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(trusted)
        context.load_cert_chain(tmp_path / "operator" / "tls.crt", tmp_path / "operator" / "tls.key")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get_status(waiting, context)


def test_plain_text_on_the_private_port_is_no_request(waiting):
    with socket.create_connection((waiting.address, waiting.port), 20) as channel:
        channel.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        channel.settimeout(20)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while data := channel.recv(4096):
                answer += data
    assert b"200" not in answer
    assert b"registered" not in answer


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param(b"[" * 200_000, 400, id="deeply nested"),
        pytest.param(b'{"generation": 1e999}', 400, id="infinite"),
        pytest.param(b'{"generation": 10}', 400, id="fields are missing"),
        pytest.param(b" " * (MOST_BYTES + 1), 413, id="too large"),
    ],
)
def test_a_malformed_roster_is_refused(waiting, body, status):
    assert waiting.call("PUT", "/v1/roster", raw=body)[0] == status


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("{", id="no JSON"),
        pytest.param({**REGISTER, "host": "h0", "protocol": 99}, id="another protocol"),
        pytest.param({**REGISTER, "host": "h0", "slots": 10**9}, id="too many slots"),
        pytest.param("x" * (3 * MOST_BYTES), id="too large"),
        pytest.param(b"\0\1\2", id="binary"),
    ],
)
def test_a_malformed_registration_is_refused(waiting, message):
    answers, code = dial(waiting, "h0", message)
    if len(message) > MOST_BYTES:
        # Who is cut off while still sending may miss the reason.
        assert code in (1009, 1006)
    else:
        assert ([answer["type"] for answer in answers], code) == (["refused"], 4400)


def test_an_old_incarnation_is_told_that_it_is_fenced(waiting):
    old = {**REGISTER, "host": "h0", "podUID": "old", "generation": 1}
    answers, code = dial(waiting, "h0", old)
    assert (answers[0]["type"], code) == ("fence", 4409)


def test_what_an_agent_still_runs_for_a_place_that_is_not_its_own_is_ended(waiting):
    runs = [{"id": "old", "status": None}, {"id": "over", "status": 0}]
    other = {**REGISTER, "host": "h0", "podUID": "other", "runs": runs}
    answers, _ = dial(waiting, "h0", other, "{")
    assert [(answer["type"], answer.get("id")) for answer in answers] == [
        ("registered", None),
        ("end", "old"),
        ("refused", None),
    ]


def test_a_registered_agent_that_talks_nonsense_is_cut_off(job):
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    waiting = {**REGISTER, "host": "h0"}
    for nonsense in ("{", {"type": "exit", "id": 3}, b"\0"):
        answers, code = dial(job, "h0", waiting, nonsense)
        assert ([answer["type"] for answer in answers], code) == (["registered", "refused"], 4400)


def test_an_agent_cannot_speak_for_anothers_run(job):
    agent = job.agent("h0", "--uid", "uid-0")
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    job.call("PUT", "/v1/roster", roster(1, ["sh", "-c", "echo up; sleep 1000"], {"h0": "uid-0"}))
    coordinator.wait_for("[0] up")
    run_id = next(line for line in environment_of_ranks(job) if line.startswith("GRADSIEVE_RUN_ID=")).split(
        "="
    )[1]
    lie = {"id": run_id, "status": 0, "stream": "stdout", "data": "ZXZpbAo="}
    messages = [{"type": kind, **lie} for kind in ("output", "exit")]
    answers, _ = dial(job, "h1", REGISTER, *messages, "{")
    assert answers[0]["type"] == "registered"
    assert job.status()["state"] in ("Starting", "Running")
    assert "evil" not in coordinator.text().splitlines()
    assert agent.process.poll() is None


def environment_of_ranks(job):
    for pid in job.left_over_ranks():
        yield from Path("/proc", str(pid), "environ").read_text().split("\0")


def test_the_launch_socket_is_the_users_own(job):
    job.agent("h0", "--uid", "uid-0")
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    job.call("PUT", "/v1/roster", roster(1, ["sh", "-c", "echo up; sleep 1000"], {"h0": "uid-0"}))
    coordinator.wait_for("[0] up")
    path = next(job.temporary.glob("gradsieve-*/launch.sock"))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)

"""Ranks hand what they measure to their host's agent, which hands the last word of each on."""

import asyncio
import json
import re
import socket
import tempfile
from pathlib import Path

import pytest
from control_job import roster

from gradsieve_hvd.control import agent_samples
from gradsieve_hvd.control.agent_samples import AgentSamples
from gradsieve_hvd.control.contract import SAMPLES
from gradsieve_hvd.control.own_samples import own_sample, tell_agent
from gradsieve_hvd.control.reporter_clock import StepTimes

PROGRAM = """
import json, os, socket, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])
print("rank", rank, "on", os.environ["GRADSIEVE_HOST"], flush=True)
told = {"rank": rank, "generation": int(os.environ["GRADSIEVE_JOB_GENERATION"]), "measuredStep": 12}
told |= {"stepSeconds": 0.5 + rank, "waitSeconds": 0.25, "appliedPlanGeneration": 1}
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    for number in range(1000):
        sender.sendto(json.dumps(told).encode(), os.environ["GRADSIEVE_SAMPLES"])
        time.sleep(0.5)
        if os.path.exists(os.environ["FORGE"] + os.environ["GRADSIEVE_HOST"]):
            told |= {"rank": 0, "stepSeconds": 99}
"""


@pytest.fixture
def path(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        monkeypatch.setenv(SAMPLES, f"{folder}/samples")
        monkeypatch.setenv("GRADSIEVE_JOB_GENERATION", "3")
        yield Path(folder, "samples")


class Received:
    """An agent's samples, and what was handed on."""

    def __init__(self, most):
        self.samples, self.messages, self.some = AgentSamples(most), [], asyncio.Event()

    def put(self, message):
        self.messages.append(message)
        self.some.set()

    async def next(self):
        await asyncio.wait_for(self.some.wait(), 30)
        self.some.clear()
        return self.messages[-1]


async def opened(path, most=4):
    received = Received(most)
    await received.samples.open(path)
    return received


def send(path, *datagrams):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for each in datagrams:
            sender.sendto(each if isinstance(each, bytes) else json.dumps(each).encode(), str(path))


async def test_samples_of_all_ranks_of_a_host_travel_in_one_message(path):
    received = await opened(path)
    received.samples.hand_to(received.put)
    for rank in range(4):
        tell_agent(rank, 7, 120, own_sample(StepTimes(0.5, 0.2, 0.0, 3), 1.0, 0.0, None))
    message = await received.next()
    told = {"generation": 3, "appliedPlanGeneration": 7, "measuredStep": 120, "waitSeconds": 0.2}
    assert message["type"] == "samples"
    assert message["ranks"] == [
        {"rank": rank, "stepSeconds": pytest.approx(0.3), **told} for rank in range(4)
    ]
    received.samples.close()


async def test_of_a_flood_the_last_word_of_as_many_ranks_as_fit_is_handed_on(path, monkeypatch):
    monkeypatch.setattr(agent_samples, "_PAUSE_SECONDS", 0.0)
    received = await opened(path, most=2)
    received.samples.hand_to(received.put)
    for number in range(1000):
        received.samples.datagram_received(json.dumps({"rank": number % 5, "n": number}).encode(), None)
    assert (await received.next())["ranks"] == [{"rank": 3, "n": 998}, {"rank": 4, "n": 999}]
    assert len(received.messages) == 1
    received.samples.close()


async def test_what_is_no_sample_of_a_rank_is_ignored(path):
    received = await opened(path)
    received.samples.hand_to(received.put)
    rank = {"rank": 1, "stepSeconds": 1.0}
    send(path, b"\xff", b"[" * 1500, b"{}", [1], {"rank": True}, {"rank": 1, "text": "x" * 5000}, rank)
    assert (await received.next())["ranks"] == [rank]
    received.samples.close()


async def test_without_a_coordinator_samples_are_forgotten_and_not_kept_for_later(path):
    received = await opened(path)
    received.samples.datagram_received(b'{"rank": 0, "n": 1}', None)
    received.samples.hand_to(received.put)
    received.samples.datagram_received(b'{"rank": 0, "n": 2}', None)
    received.samples.hold()
    received.samples.hand_to(received.put)
    received.samples.datagram_received(b'{"rank": 1, "n": 3}', None)
    assert (await received.next())["ranks"] == [{"rank": 1, "n": 3}]
    assert len(received.messages) == 1
    received.samples.close()


async def test_a_refusal_is_said_and_nothing_is_handed_on_for_a_while(path, monkeypatch, caplog):
    monkeypatch.setattr(agent_samples, "_REFUSED_SECONDS", 1.0)
    received = await opened(path)
    received.samples.hand_to(received.put)
    received.samples.refused("telemetry from h0 names rank 2 of h1")
    began = asyncio.get_running_loop().time()
    send(path, {"rank": 0})
    await received.next()
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert "refuses what ranks here measure: telemetry from h0 names rank 2 of h1" in caplog.text
    received.samples.close()


def test_where_no_agent_listens_or_there_is_none_a_rank_goes_on(path, monkeypatch):
    tell_agent(0, 0, None, {"stepSeconds": 1.0})
    monkeypatch.delenv(SAMPLES)
    tell_agent(0, 0, None, {"stepSeconds": 1.0})


async def test_a_folder_whose_name_is_too_long_costs_the_samples_only(path, caplog):
    received = await opened(path.with_name("x" * 200))
    assert "set TMPDIR to a short path" in caplog.text
    received.samples.close()


@pytest.mark.parametrize("backend", ["MPI", "Gloo"])
def test_real_agents_speak_for_their_own_ranks_and_forgers_among_them_are_refused(job, backend):
    """Rank 0 is not on the host whose name comes first, and one host has two ranks."""
    module = {"MPI": "mpi4py", "Gloo": "horovod"}[backend]
    pytest.importorskip(module, reason=f"NO {backend} HERE: {module} is not installed")
    for host, slots in (("h0", 1), ("h1", 2)):
        job.agent(host, "--uid", f"uid-{host}", slots=slots)
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    hosts = {"h1": "uid-h1", "h0": "uid-h0"}
    body = roster(1, ["python", "-c", PROGRAM], hosts, backend=backend, env={"FORGE": f"{job.folder}/forge-"})
    body["hosts"][0]["slots"] = 2
    assert job.call("PUT", "/v1/roster", body)[0] == 200
    coordinator.wait_for(" on h", times=3)
    where = dict(re.findall(r"rank (\d) on (h\d)", coordinator.text()))
    assert sorted(where.values()) == ["h0", "h1", "h1"]
    sample = {"generation": 1, "step": 13, "measuredStep": 12, "stepSeconds": 1.5, "waitSeconds": 0.25}
    sample |= {"time": 1, "appliedPlanGeneration": 1}

    def all_have_told(status):
        assert job.call("POST", "/v1/telemetry", sample, party=where["0"])[0] == 200
        return status["window"] is not None and status["window"]["ranks"] == 3

    status = job.wait_for(all_have_told)
    everyone = [(rank, where[str(rank)], 0.5 + rank) for rank in range(3)]
    assert told(status) == everyone
    assert (status["window"]["slowestHost"], status["refusedReports"]) == (where["2"], 0)
    (job.folder / f"forge-{where['2']}").touch()
    status = job.wait_for(lambda status: status["refusedReports"] > 0)
    coordinator.wait_for(f"refused: telemetry from {where['2']} names rank 0 of {where['0']}")
    assert told(status) == everyone
    assert (status["state"], [each["connected"] for each in status["registered"]]) == (
        "Running",
        [True, True],
    )


def told(status):
    """Return number, host and own work of the ranks in a status."""
    ranks = status["telemetry"]["ranks"]
    return [(each["rank"], each["host"], each["stepSeconds"]) for each in ranks]

"""Gloo: Horovod's elastic driver over agents; survivors go on in place, newcomers join."""

import asyncio
import os
import signal
import time

import aiohttp
import pytest
from control_job import changed, roster

from gradsieve_hvd.control.contract import FORSAKEN_SECONDS
from gradsieve_hvd.control.tls import client_context

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
pytestmark = pytest.mark.timeout(560)

ALLREDUCE = """
import horovod.torch as hvd, os, socket, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
print("allreduce", hvd.size(), hvd.local_size(), total.item(), socket.gethostname(), flush=True)
"""


# Steps until a file says enough; commits every step, and tells every fifth where it is.
ELASTIC = """
import os, sys, time
import horovod.torch as hvd, torch
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import run
hvd.init()
host, generation = os.environ["GRADSIEVE_HOST"], os.environ["GRADSIEVE_JOB_GENERATION"]
print("starts", host, "generation", generation, flush=True)
with open(f"{sys.argv[1]}-{host}-{hvd.local_rank()}", "w") as file:
    file.write(str(os.getpid()))

@run
def train(state):
    while True:
        enough = hvd.allreduce(torch.tensor([float(os.path.exists(sys.argv[1]))]), op=hvd.Max, name="enough")
        state.step += 1
        if state.step % 5 == 0:
            print("step", state.step, "size", hvd.size(), "host", host, flush=True)
        if enough.item():
            return
        time.sleep(0.1)
        state.commit()

train(ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, step=0))
"""


# The same with a training by our own optimizer, whose commits lie in a folder of the process.
TRAINING = """
import os, sys, time
import horovod.torch as hvd, torch
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import run
from torch import nn
import gradsieve_hvd
hvd.init()
host, generation = os.environ["GRADSIEVE_HOST"], os.environ["GRADSIEVE_JOB_GENERATION"]
print("starts", host, "generation", generation, flush=True)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, 10))
optimizer = gradsieve_hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    model.named_parameters(),
    gradsieve_hvd.Compression.topk(density=0.05, min_elements=100),
)

def owed():
    layers = gradsieve_hvd.state_dict(optimizer)["layers"].values()
    return sum(float(layer["feedback"]["residual"].norm()) for layer in layers)

@run
def train(state):
    commits = gradsieve_hvd.TrainingState(model, optimizer, directory=f"{sys.argv[1]}-{os.getpid()}")
    step = commits.restore()
    if step == 0:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    print("restored", step, "of", hvd.size(), "owing", owed() > 0, "lost", *commits.lost.ranks, flush=True)
    while True:
        enough = hvd.allreduce(torch.tensor([float(os.path.exists(sys.argv[1]))]), op=hvd.Max, name="enough")
        torch.manual_seed(100 * step + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(8, 60)).square().mean().backward()
        optimizer.step()
        step += 1
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        everyone = hvd.allgather(mine[None], name="weights")
        assert (everyone == everyone[0]).all(), "ranks have drifted apart"
        commits.commit(step)
        if step % 5 == 0:
            print("step", step, "size", hvd.size(), "host", host, flush=True)
        if enough.item():
            return
        time.sleep(0.1)
        state.commit()

train(ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank))
"""


def steps(coordinator, size):
    """Return the numbers of the steps that some rank reported with so many ranks."""
    words = [line.split() for line in coordinator.lines("[")]
    return [int(word[2]) for word in words if word[1] == "step" and word[4] == str(size)]


def test_survivors_go_on_in_place_and_a_successor_joins_them(spread_job):
    job, enough = spread_job, spread_job.folder / "enough"
    # A newcomer must import torch in that time; on this machine, three hosts share the cores of one.
    patience = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "90"}
    hosts = {host: job.agent(host, slots=2 if host == "h0" else 1, **patience) for host in ("h0", "h1", "h2")}
    options = ("--gloo", "--hosts", "h0:2,h1,h2", "--min-hosts", "2")
    coordinator = job.coordinator(*options, "--", "python", "-c", TRAINING, str(enough))
    coordinator.wait_for("size 4", 150)
    hosts["h1"].signal(signal.SIGKILL)
    # Well before Gloo gives up: a survivor that waits for another one hears of the loss from that one.
    coordinator.wait_for("size 3", 45)
    job.agent("h1", **patience)
    coordinator.wait_for("size 4 host h1", 150, times=coordinator.text().count("size 4 host h1") + 1)
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()
    starts = sorted(line.split(" ", 1)[1] for line in coordinator.lines("[") if "starts" in line)
    assert starts == [f"starts {host} generation 1" for host in ("h0", "h0", "h1", "h1", "h2")]
    before = max(step for step in steps(coordinator, 4) if step < min(steps(coordinator, 3)))
    assert min(steps(coordinator, 3)) - before <= 5, "no more than the last step was done again"
    for host in ("h0", "h2"):
        assert hosts[host].process.poll() is None
    restored = [line.split() for line in coordinator.lines("[") if " restored " in line]
    after_loss = [line[5:] for line in restored if line[4] == "3"]
    assert len(after_loss) == 3
    assert all(line[1] == "True" and len(line) == 4 for line in after_loss), "each keeps its residual"
    after_joining = sorted(line[6] for line in restored if line[4] == "4" and line[2] != "0")
    assert after_joining == ["False", "True", "True", "True"], "a new rank owes nothing"


def test_a_survivor_that_fails_with_a_lost_host_is_started_anew(job):
    enough = job.folder / "enough"
    agents = {host: job.agent(host, slots=2 if host == "h2" else 1) for host in ("h0", "h1", "h2")}
    options = ("--gloo", "--hosts", "h0,h1,h2:2", "--min-hosts", "1")
    coordinator = job.coordinator(*options, "--", "python", "-c", ELASTIC, str(enough))
    coordinator.wait_for("size 4", 150)
    agents["h1"].signal(signal.SIGKILL)
    # As Horovod from PyPI may do then.
    os.kill(int(enough.with_name("enough-h2-0").read_text()), signal.SIGABRT)
    coordinator.wait_for("size 3 host h2", 150)
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()
    starts = sorted(line.split(" ", 1)[1] for line in coordinator.lines("[") if "starts" in line)
    assert starts == [f"starts {host} generation 1" for host in ("h0", "h1", "h2", "h2", "h2", "h2")]
    assert agents["h2"].process.poll() is None


def test_horovod_reduces_across_three_hosts(spread_job):
    job = spread_job
    agents = [job.agent(host, "--once") for host in ("h0", "h1", "h2")]
    coordinator = job.coordinator("--gloo", "--hosts", "h0,h1,h2", "--", "python", "-c", ALLREDUCE)
    assert coordinator.wait(200) == 0, coordinator.text()
    lines = sorted(line.partition(" ")[2] for line in coordinator.lines("["))
    assert lines == [f"allreduce 3 1 6.0 h{host}" for host in range(3)]
    assert sorted(line.partition(" ")[0] for line in coordinator.lines("[")) == ["[0]", "[1]", "[2]"]
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    assert job.left_over() == []


def leave_when_told_to_end(job, host):
    """Be an agent that registers and goes as soon as it is to end what it runs: just before the start."""

    async def talk():
        async with aiohttp.ClientSession() as session:
            context = client_context(job.certificates / host)
            url = f"https://{job.address}:{job.port}/v1/agent"
            async with session.ws_connect(url, ssl=context, server_hostname="coordinator") as channel:
                who = {"host": host, "podUID": "brief", "generation": 0, "slots": 1}
                await channel.send_json({"type": "register", "protocol": 1, **who})
                while (await channel.receive_json())["type"] != "end":
                    pass
                await channel.close(code=aiohttp.WSCloseCode.GOING_AWAY)
        # Connections that TLS has closed on one side go a moment later.
        await asyncio.sleep(0.25)

    asyncio.run(asyncio.wait_for(talk(), 60))


def test_a_job_that_loses_a_host_just_before_its_start_runs_without_it(job):
    enough = job.folder / "enough"
    job.agent("h0")
    options = ("--gloo", "--hosts", "h0,h1", "--min-hosts", "1")
    coordinator = job.coordinator(*options, "--", "python", "-c", ELASTIC, str(enough))
    coordinator.wait_for("listening", times=2)
    leave_when_told_to_end(job, "h1")
    coordinator.wait_for("all ranks run", 90)
    coordinator.wait_for("size 1 host h0", 90)
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()


def test_a_rank_that_was_lost_before_its_agent_saw_it_is_not_waited_for(job):
    enough = job.folder / "enough"
    blind = "import gradsieve_hvd.control.agent_runs as it; it._ranks_of = lambda run: set()"
    job.agent("h0")
    agent = job.agent("h1", **changed(job.folder, blind))
    options = ("--gloo", "--hosts", "h0,h1", "--min-hosts", "1")
    coordinator = job.coordinator(*options, "--", "python", "-c", ELASTIC, str(enough))
    coordinator.wait_for("size 2", 150)
    assert "all ranks run" not in coordinator.text()
    agent.signal(signal.SIGKILL)
    coordinator.wait_for("size 1 host h0", 90)
    coordinator.wait_for("all ranks run")
    enough.touch()
    assert coordinator.wait(60) == 0, coordinator.text()


def test_what_horovods_runner_raises_is_the_end_of_the_job_and_its_message(job):
    agent = job.agent("h0", "--once", "--uid", "uid-0")
    coordinator = job.coordinator(HOROVOD_ELASTIC_TIMEOUT="soon")
    coordinator.wait_for("listening", times=2)
    assert job.call("PUT", "/v1/roster", roster(1, ["true"], {"h0": "uid-0"}, backend="Gloo"))[0] == 200
    status = job.wait_for("Failed")
    said = "ValueError: invalid literal for int() with base 10: 'soon'"
    assert (status["exitCode"], status["message"]) == (1, said)
    assert [coordinator.wait(30), agent.wait(30)] == [1, 1]


def test_without_coordinator_the_ranks_train_on_until_the_next_one_starts_anew(job):
    ticks = job.folder / "ticks"
    tick = f"while :; do echo $GRADSIEVE_RUN_ID >> {ticks}; sleep 0.2; done"
    agent = job.agent("h0")
    first = job.coordinator("--gloo", "--hosts", "h0", "--", "sh", "-c", tick)
    first.wait_for("all ranks run")
    first.signal(signal.SIGKILL)
    first.wait()
    # What mpirun had started would be ended by now.
    time.sleep(FORSAKEN_SECONDS + 3)
    before, until = len(ticks.read_text()), time.monotonic() + 30
    while len(ticks.read_text()) == before:
        assert time.monotonic() < until, "the rank no longer ticks"
        time.sleep(0.1)
    second = job.coordinator("--gloo", "--hosts", "h0", "--", "true")
    assert second.wait(60) == 0, second.text()
    assert job.left_over_ranks() == []
    assert agent.process.poll() is None

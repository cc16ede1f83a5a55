"""Gloo with compressed gradients: who joins under another density trains with the same as the survivors."""

import json
import re
import signal

import pytest
from control_job import roster

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
pytestmark = pytest.mark.timeout(560)

TRAINING = """
import os, sys, time
from pathlib import Path
import horovod.torch as hvd, torch
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import run
import gradsieve_hvd
hvd.init()
torch.set_num_threads(1)
folder, host = Path(sys.argv[1]), os.environ["GRADSIEVE_HOST"]
print("starts", host, os.environ["GRADSIEVE_COMPRESSION"], flush=True)

@run
def train(elastic):
    model = torch.nn.Linear(60, 20, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        named_parameters=model.named_parameters(),
        compression=gradsieve_hvd.job_compression(min_elements=100, timeout_seconds=60),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    state = gradsieve_hvd.TrainingState(model, optimizer, directory=folder / host)
    step = state.restore()
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 60)).square().mean().backward()
        optimizer.step()
        step += 1
        state.commit(step)
        kept = gradsieve_hvd.statistics(optimizer).kept
        print("step", step, "size", hvd.size(), "host", host, "kept", kept, flush=True)
        elastic.check_host_updates()
        enough = torch.tensor(float((folder / "enough").exists()))
        if hvd.allreduce(enough, op=hvd.Max, name="enough").item():
            return
        time.sleep(0.1)

train(ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank))
"""
STARTED, PLANNED = 120, 240  # of 1 200 entries


def put(job, generation, density, hosts):
    """Tell the coordinator members and density, as the operator does."""
    asked = {"algorithm": "TopK", "densityPermille": density}
    environment = {"GRADSIEVE_COMPRESSION": json.dumps(asked)}
    command = ["python", "-c", TRAINING, str(job.folder)]
    body = roster(generation, command, hosts, backend="Gloo", env=environment, minHosts=1)
    assert job.call("PUT", "/v1/roster", body)[0] == 200


def steps(coordinator):
    """Return what each rank kept: host, size and step -> entries."""
    line = re.compile(r"step (\d+) size (\d) host (h\d) kept (\d+)")
    return {(host, size, int(step)): int(kept) for step, size, host, kept in line.findall(coordinator.text())}


def test_a_newcomer_after_a_change_of_the_density_joins_in_place_and_follows_the_plan_with_the_others(job):
    patience = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "90"}
    agents = {host: job.agent(host, "--uid", f"uid-{host}", **patience) for host in ("h0", "h1")}
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    put(job, 1, 100, {"h0": "uid-h0", "h1": "uid-h1"})
    coordinator.wait_for("size 2", 150)
    assert job.call("PUT", "/v1/plan", {"generation": 2, "densityPermille": 200})[0] == 200
    coordinator.wait_for(": plan 2 ", 60, times=2)
    agents["h1"].signal(signal.SIGKILL)
    job.agent("h1", "--uid", "uid-new", **patience)
    put(job, 2, 200, {"h0": "uid-h0", "h1": "uid-new"})
    coordinator.wait_for(": plan 2 ", 150, times=4)
    coordinator.wait_for(f"kept {PLANNED}", times=coordinator.text().count(f"kept {PLANNED}") + 4)
    (job.folder / "enough").touch()
    job.wait_for("Succeeded")
    assert coordinator.wait(60) == 0, coordinator.text()
    assert coordinator.text().count("starts h0") == 1, "the survivor's process went on"
    started = re.findall(r"starts h1 .*densityPermille\": (\d+)", coordinator.text())
    assert started == ["100", "100"], "settings are compared when ranks meet: all have started alike"
    last = steps(coordinator)
    both = [step for host, size, step in last if (host, size) == ("h1", "2")]
    assert all(last["h0", "2", step] == last["h1", "2", step] for step in both)
    assert last["h0", "2", max(both)] == PLANNED
    assert STARTED in last.values()

"""Gloo: Horovod's elastic driver over agents; survivors go on in place, newcomers join."""

import pytest

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
pytestmark = pytest.mark.timeout(280)

ALLREDUCE = """
import horovod.torch as hvd, os, socket, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
print("allreduce", hvd.size(), hvd.local_size(), total.item(), socket.gethostname(), flush=True)
"""


def test_horovod_reduces_across_three_hosts(spread_job):
    job = spread_job
    agents = [job.agent(host, "--once", slots=1) for host in ("h0", "h1", "h2")]
    coordinator = job.coordinator("--gloo", "--hosts", "h0,h1,h2", "--", "python", "-c", ALLREDUCE)
    assert coordinator.wait(200) == 0, coordinator.text()
    lines = sorted(line.partition(" ")[2] for line in coordinator.lines("["))
    assert lines == [f"allreduce 3 1 6.0 h{host}" for host in range(3)]
    assert sorted(line.partition(" ")[0] for line in coordinator.lines("[")) == ["[0]", "[1]", "[2]"]
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    assert job.left_over() == []

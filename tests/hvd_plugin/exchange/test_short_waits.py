"""A rank that waits for letters for a moment goes on after it, on a busy machine, too."""

import pytest
from real_ranks import run_alone

pytestmark = pytest.mark.timeout(240)
ROUNDS = 60_000  # a queue that now and then waits for ever did so within 20 000

# Before Python 3.13 the deadline of SimpleQueue.get, when it passes between two looks at the clock, becomes a
# negative time-out, which is none. That takes a letter before, a short wait, and another thread's turn.
COLLECTING = """
import threading
import torch, torch.distributed as dist
from gradsieve_hvd.transport.mpi import MpiTransport
from gradsieve_hvd.transport.threads import run_ranks
from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

def collect_often(mail, rounds):
    letter = torch.zeros(1, dtype=torch.uint8)
    for _ in range(rounds):
        mail.post(letter, mail.rank)
        assert mail.collect(60.0) == (mail.rank, letter)
        assert mail.collect(1e-9) is None

def goes_on(name, mail, rounds):
    thread = threading.Thread(target=collect_often, args=(mail, rounds), daemon=True)
    thread.start()
    thread.join(100.0)
    print(name, "stands still" if thread.is_alive() else "goes on", flush=True)

rounds = {rounds}
dist.init_process_group("gloo")
goes_on("threads", run_ranks(1, lambda transport: transport.open_mail())[0], rounds)
goes_on("gloo", TorchDistributedTransport().open_mail(), rounds)
goes_on("MPI", MpiTransport().open_mail(), rounds)
dist.destroy_process_group()
"""


def test_over_all_that_carries_letters(tmp_path):
    pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
    status, said = run_alone(COLLECTING.format(rounds=ROUNDS), 1, tmp_path, timeout=200.0)
    assert (status, said.splitlines()) == (0, ["threads goes on", "gloo goes on", "MPI goes on"])

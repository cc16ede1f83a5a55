"""Messages by mpi4py beside Horovod: in both orders of import, from a thread, and to the program's end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from real_ranks import on_ranks, run_alone

from gradsieve.errors import ExchangeError

ORDERS = {
    "mpi4py first": "from mpi4py import MPI\nimport horovod.torch as hvd\nhvd.init()",
    "Horovod first": "import horovod.torch as hvd\nhvd.init()\nfrom mpi4py import MPI",
    "Horovod alone": "import horovod.torch as hvd\nhvd.init()",
}

BESIDE_HOROVOD = """
{start}
from concurrent.futures import ThreadPoolExecutor
import torch
from gradsieve_hvd.transport.base import allgather
from gradsieve_hvd.transport.choose import choose_transport

chosen = choose_transport(hvd.global_process_set, timeout=30)
print(f"rank {{hvd.rank()}} by {{chosen.name}}: {{chosen.why}}", flush=True)

def exchange():
    for step in range(50):
        mine = torch.full((1000 * hvd.rank() + step,), step, dtype=torch.uint8)
        for rank, message in enumerate(allgather(chosen.transport, mine)):
            assert message.numel() == 1000 * rank + step, (rank, message.numel())
            assert bool((message == step).all())

with ThreadPoolExecutor(1) as threads:
    running = threads.submit(exchange)
    for step in range(50):
        assert float(hvd.allreduce(torch.ones(10), op=hvd.Sum)[0]) == hvd.size()
    running.result()
print(f"rank {{hvd.rank()}} done", flush=True)
"""
STILL_WAITING = """
import threading, time
from gradsieve_hvd.transport.mpi import MpiTransport

transport = MpiTransport()
message = torch.zeros(8, dtype=torch.uint8)
next_rank, last_rank = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
transport.send_receive(message, next_rank, last_rank)

def wait():
    if transport.rank != 0:
        transport.send_receive(message, next_rank, last_rank)

threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
hvd.allreduce(torch.ones(1))
print(f"rank {transport.rank} ends", flush=True)
"""


@pytest.fixture(scope="module", params=ORDERS)
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Exit status and output of three ranks that send messages, and end while a thread waits for one."""
    program = BESIDE_HOROVOD.format(start=ORDERS[request.param]) + STILL_WAITING
    return run_alone(program, 3, tmp_path_factory.mktemp("mpi"))


def test_messages_travel_from_a_thread_while_horovod_works(ended: tuple[int, str]) -> None:
    status, output = ended
    assert status == 0, output
    for rank in range(3):
        assert f"rank {rank} by mpi4py: it sends to single ranks" in output
        assert f"rank {rank} done" in output


def test_a_thread_that_still_waits_does_not_keep_the_program_from_ending(ended: tuple[int, str]) -> None:
    status, output = ended
    assert status == 0, output
    assert all(f"rank {rank} ends" in output for rank in range(3))


WITHOUT_THREADS = 'import os\nos.environ["HOROVOD_MPI_THREADS_DISABLE"] = "1"\n'
WITHOUT_MPI4PY = """
import os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.modules["mpi4py"] = None
"""


@pytest.mark.parametrize(
    ("before", "why"),
    [
        pytest.param(WITHOUT_THREADS, "rank 0: MPI was started without support for calls", id="threads"),
        pytest.param(WITHOUT_MPI4PY, "rank 1: mpi4py is not installed", id="mpi4py"),
    ],
)
def test_if_one_rank_cannot_all_take_horovods_collectives_and_say_why(
    before: str, why: str, tmp_path: Path
) -> None:
    program = BESIDE_HOROVOD.format(start=before + ORDERS["Horovod alone"]).replace("range(50)", "range(5)")
    # Horovod's collectives need both sides to enter them in one order: not from two threads.
    program = program.replace(
        "    for step in range(5):\n        assert float", "    for step in ():\n        assert float"
    )
    status, output = run_alone(program, 3, tmp_path)
    assert status == 0, output
    for rank in range(3):
        assert f"rank {rank} by Horovod: not mpi4py: {why}" in output
        assert f"rank {rank} done" in output


AFTER_SHUTDOWN = """
import horovod.torch as hvd
hvd.init()
import torch
from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.mpi import MpiTransport

transport = MpiTransport()
hvd.barrier()
hvd.shutdown()
try:
    transport.send_receive(torch.zeros(8, dtype=torch.uint8), 1 - transport.rank, 1 - transport.rank)
except ExchangeError as error:
    print(error, flush=True)
"""


def test_an_exchange_after_horovods_shutdown_is_an_error(tmp_path: Path) -> None:
    status, output = run_alone(AFTER_SHUTDOWN, 2, tmp_path)
    assert status == 0, output
    assert "rank 1: MPI has ended; exchange before hvd.shutdown()" in output


SUM_ALONE = """
import horovod.torch as hvd
hvd.init()
import torch
from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.mpi import MpiTransport

transport = MpiTransport(timeout=1)
total = transport.begin_allreduce(torch.full((3_000_000,), transport.rank + 1.0))()
assert bool((total == 6).all())
if transport.rank == 0:
    try:
        transport.begin_allreduce(torch.ones(3_000_000))()
    except ExchangeError as error:
        print(error, flush=True)
hvd.barrier()
"""


def test_a_sum_that_one_rank_makes_alone_ends_in_time_and_so_does_the_program(tmp_path: Path) -> None:
    status, output = run_alone(SUM_ALONE, 3, tmp_path)
    assert status == 0, output
    assert "rank 0: nothing from rank 2, which adds up the same values within 1 s" in output


@on_ranks
def test_a_rank_that_stays_away_is_named_and_no_later_message_is_believed(hvd: Any) -> None:
    if not hvd.mpi_enabled():
        return
    from gradsieve_hvd.transport.mpi import MpiTransport

    message = torch.zeros(5, dtype=torch.uint8)
    transport = MpiTransport(timeout=0.5)
    if hvd.rank() == 0:
        for _ in range(2):
            with pytest.raises(
                ExchangeError, match=f"rank 0: nothing from rank {hvd.size() - 1} within 0.5 s"
            ):
                transport.send_receive(message, 1, hvd.size() - 1)
    hvd.barrier()
    transport.close()
    with pytest.raises(ExchangeError):
        transport.send_receive(message, (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size())


@on_ranks
def test_messages_longer_than_what_mpi_sends_at_once_arrive(hvd: Any) -> None:
    if not hvd.mpi_enabled():
        return
    from gradsieve_hvd.transport.mpi import MpiTransport

    transport = MpiTransport(timeout=60)
    rank, size = transport.rank, transport.size
    message = torch.full((5_000_000,), rank, dtype=torch.uint8)
    received = transport.send_receive(message, (rank + 1) % size, (rank - 1) % size)
    assert received.numel() == 5_000_000
    assert bool((received == (rank - 1) % size).all())


@on_ranks
def test_a_part_of_the_ranks_has_numbers_of_its_own(hvd: Any) -> None:
    if not hvd.mpi_enabled():
        return
    from gradsieve_hvd.transport.mpi import MpiTransport

    members = [0, hvd.size() - 1]
    if hvd.rank() in members:
        transport = MpiTransport(members, timeout=60)
        assert (transport.rank, transport.size) == (members.index(hvd.rank()), 2)
        other = 1 - transport.rank
        received = transport.send_receive(torch.tensor([hvd.rank()], dtype=torch.uint8), other, other)
        assert received.tolist() == [members[other]]

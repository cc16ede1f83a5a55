"""A server that nobody writes to leaves the processor to others."""

import time

import torch
from real_ranks import on_ranks

from gradsieve_hvd.transport.mpi_mail import MpiMail


@on_ranks
def test_who_has_been_idle_for_long_looks_seldom_and_finds_what_comes(hvd):
    if not hvd.mpi_enabled():
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    looks = []

    def ask(call, what):
        looks.append(what)
        return call()

    mail = MpiMail(comm, ask, timeout=30.0, number=0)
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        assert mail.collect(0.5) is None
    looks.clear()
    assert mail.collect(0.5) is None
    assert len(looks) <= 40  # every 2 ms it would be 250
    comm.Barrier()  # who is done looking writes to nobody who still expects nothing
    letter = torch.arange(comm.rank, comm.rank + 9, dtype=torch.uint8)
    mail.post(letter, (comm.rank + 1) % comm.size)
    source, found = mail.collect(10.0)
    assert source == (comm.rank - 1) % comm.size
    assert found.tolist() == list(range(source, source + 9))
    mail.close(10.0)
    comm.Barrier()

"""Waiting for a job's hosts ends in time, whatever those do that come and go meanwhile."""

import asyncio

import pytest

from gradsieve_hvd.control.coordinator import Coordinator
from gradsieve_hvd.control.messages import Incarnation, Place, Registration, Roster


class Connection:
    silent, heard = False, 0.0
    local_address = peer_address = "127.0.0.1"

    async def send(self, message):
        pass

    async def close(self, code, reason):
        pass


@pytest.fixture
def waiting(tmp_path):
    """Return what starts the coordinator of a job of two hosts."""

    async def start():
        coordinator = Coordinator(tmp_path, lambda *_: None)
        await coordinator.set_roster(Roster(1, ("true",), "MPI", (Place("h0", "", 1), Place("h1", "", 1))))
        return coordinator

    return start


async def flap(coordinator):
    """Let host h0 come and go without end."""
    registration, connection = Registration(Incarnation("h0", "a"), 0, 1), Connection()
    while True:
        await coordinator.agent_registered(registration, connection)
        await asyncio.sleep(0.02)
        coordinator.agent_gone(registration.incarnation, connection, left=True)
        await asyncio.sleep(0.02)


async def test_a_host_that_comes_and_goes_does_not_prolong_the_wait_for_another(waiting):
    coordinator = await waiting()
    flapping = asyncio.create_task(flap(coordinator))
    try:
        async with asyncio.timeout(10):
            end = await coordinator.serve(1.0)
    finally:
        flapping.cancel()
    assert end.status == 1
    assert "h1 for 1 s: giving up" in end.message


async def test_without_a_limit_it_waits_until_it_is_ended(waiting):
    coordinator = await waiting()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await coordinator.serve(None)

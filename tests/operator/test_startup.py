"""An operator that cannot start lets go of everything and ends: another replica, or its next life, may."""

import asyncio
import contextlib

import pytest
from operator_in_memory import running_process

from gradsieve_operator.cluster import operator as module
from gradsieve_operator.cluster.operator import Operator
from gradsieve_operator.cluster.options import Options

JOBS = "/apis/gradsieve.io/v1alpha1/horovodjobs"
LEASE = "coordination.k8s.io/v1/leases"


def options(port: int) -> Options:
    return Options(namespace="system", identity="one", health=f"127.0.0.1:{port}")


def holder(server) -> str:
    """Return who holds the Lease; empty for nobody."""
    lease = server.all(LEASE, "system").get("gradsieve-operator")
    return "" if lease is None else lease["spec"]["holderIdentity"]


def parts() -> list[str]:
    """Return what of the operator runs in the background."""
    work = [task.get_coro() for task in asyncio.all_tasks()]
    return [each.__qualname__ for each in work if "gradsieve_operator" in each.cr_code.co_filename]


async def test_a_server_that_fails_in_passing_does_not_keep_it_from_starting(server, port):
    server[f"get {JOBS}"][:1] << 503
    server["get /api/v1/nodes"][:1] << 500
    operator = Operator(options(port))
    await asyncio.wait_for(operator.start(), 20)
    assert holder(server) == "one"
    await operator.stop()


async def test_when_it_cannot_start_it_holds_no_lease_serves_no_health_and_can_be_started_again(
    server, port, monkeypatch
):
    with monkeypatch.context() as soon:
        soon.setattr(module, "SYNC_SECONDS", 0.3)
        server[f"get {JOBS}"][:1] << 503
        with pytest.raises(TimeoutError):
            await Operator(options(port)).start()
    assert holder(server) == ""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert parts() == []
    again = Operator(options(port))
    await asyncio.wait_for(again.start(), 20)
    assert "Lease.hold" in parts()
    await again.stop()


async def test_it_does_not_hold_the_lease_when_nodes_and_pods_do_not_come(server, port, monkeypatch):
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.5)
    server["get /api/v1/nodes"] << 503
    with pytest.raises(TimeoutError):
        await Operator(options(port)).start()
    assert holder(server) == ""


async def test_cancelled_while_it_starts_it_lets_another_lead_at_once(server, port):
    asked = asyncio.Event()

    async def never():
        asked.set()
        await asyncio.Event().wait()

    server[f"get {JOBS}"] << never
    starting = asyncio.create_task(Operator(options(port)).start())
    await asyncio.wait_for(asked.wait(), 20)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    assert holder(server) == ""


async def test_the_process_ends_with_an_error_so_that_it_is_started_anew(server):
    server[f"get {JOBS}"] << 503
    async with running_process({"SYNC_SECONDS": 1.0}) as process:
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1, said.decode()
    assert "failed with an exception and will stop now" in said.decode()
    assert holder(server) == ""

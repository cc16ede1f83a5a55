"""Of several replicas one acts; another takes over when it is gone, and none acts without knowing."""

import asyncio
import contextlib

import kmock as kmock_library
import pytest

from gradsieve_operator.cluster import lease as module
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.lease import Lease, LeaseLost


@pytest.fixture
async def api(server):
    async with Api(Access.find()) as found:
        yield found


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "DURATION_SECONDS", 1)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.2)
    monkeypatch.setattr(module, "_GIVE_UP_SECONDS", 0.5)


def lease(api, identity: str) -> Lease:
    return Lease(api, "system", "gradsieve-operator", identity)


async def test_the_second_waits_until_the_first_lets_go(api):
    first, second = lease(api, "one"), lease(api, "two")
    await first.acquire()
    holding, waiting = asyncio.create_task(first.hold()), asyncio.create_task(second.acquire())
    await asyncio.sleep(2.0)
    assert not waiting.done()
    holding.cancel()
    await first.release()
    await asyncio.wait_for(waiting, 5)


async def test_the_second_takes_over_when_the_first_stops_renewing(api):
    await lease(api, "one").acquire()
    await asyncio.wait_for(lease(api, "two").acquire(), 10)


async def test_a_holder_that_was_replaced_stops(api, server):
    first = lease(api, "one")
    await first.acquire()
    server.objects["coordination.k8s.io/v1/leases", "system", "gradsieve-operator"].patch(
        {"spec": {"holderIdentity": "two", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    )
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(first.hold(), 5)


async def test_a_holder_that_cannot_renew_stops(api, server):
    first = lease(api, "one")
    await first.acquire()

    def down(_request):
        raise kmock_library.KubernetesError(status=503, reason="ServiceUnavailable", message="down")

    server.before = down
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(first.hold(), 10)


async def test_of_two_that_ask_at_once_one_gets_it(api):
    rivals = [asyncio.create_task(lease(api, name).acquire()) for name in ("one", "two")]
    await asyncio.wait(rivals, timeout=0.8, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in rivals].count(True) == 1
    for task in rivals:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

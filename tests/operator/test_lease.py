"""Of several replicas one acts; another takes over when it is gone, and none acts without knowing."""

import asyncio
import contextlib

import kmock as kmock_library
import pytest
from skipped_time import skip_waits

from gradsieve_operator.cluster import lease as module
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.lease import DURATION_SECONDS, Lease, LeaseLost

WHERE = "/apis/coordination.k8s.io/v1/namespaces/system/leases/gradsieve-operator"


@pytest.fixture(autouse=True)
async def skipped(monkeypatch):
    """The seconds of these tests are those of the loop's clock, which waits for nobody."""
    skip_waits(monkeypatch)


@pytest.fixture
async def api(server):
    async with Api(Access.find()) as found:
        yield found


def lease(api, identity: str) -> Lease:
    return Lease(api, "system", "gradsieve-operator", identity)


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def doing(*work):
    """Run this beside the test, and end it."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def seconds_until_lost(held: Lease) -> float:
    began = now()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(held.hold(), 1000)
    return now() - began


async def test_the_second_waits_until_the_first_lets_go(api):
    first, second = lease(api, "one"), lease(api, "two")
    await first.acquire()
    async with doing(first.hold(), second.acquire()) as (holding, waiting):
        await asyncio.sleep(4 * DURATION_SECONDS)
        assert not waiting.done()
        assert not holding.done()
        holding.cancel()
        await first.release()
        await asyncio.wait_for(waiting, DURATION_SECONDS / 2)


async def test_the_second_takes_over_when_the_first_stops_renewing(api):
    await lease(api, "one").acquire()
    began = now()
    await asyncio.wait_for(lease(api, "two").acquire(), 2 * DURATION_SECONDS)
    assert now() - began > DURATION_SECONDS


async def test_a_holder_that_was_replaced_stops(api, server):
    first = lease(api, "one")
    await first.acquire()
    server.objects["coordination.k8s.io/v1/leases", "system", "gradsieve-operator"].patch(
        {"spec": {"holderIdentity": "two", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    )
    assert await seconds_until_lost(first) < DURATION_SECONDS / 2


async def test_a_holder_that_cannot_renew_stops(api, server):
    first = lease(api, "one")
    await first.acquire()

    def down(_request):
        raise kmock_library.KubernetesError(status=503, reason="ServiceUnavailable", message="down")

    server.before = down
    assert await seconds_until_lost(first) <= module._GIVE_UP_SECONDS + 0.001


@pytest.mark.parametrize("renewals", [0, 3])
async def test_a_holder_whose_network_hangs_stops_before_another_may_begin(api, renewals):
    first, second = lease(api, "one"), lease(api, "two")
    await first.acquire()
    async with doing(second.acquire()) as [waiting]:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(first.hold(), (renewals + 0.5) * module._RENEW_SECONDS)
        cut, first._api = now(), CutOff()
        lost = cut + await seconds_until_lost(first)
        assert not waiting.done()
        await asyncio.wait_for(waiting, 2 * DURATION_SECONDS)
    assert first._renewed <= cut
    assert lost - first._renewed <= module._GIVE_UP_SECONDS + 0.001
    assert now() - first._renewed >= DURATION_SECONDS


class CutOff:
    """An API server behind a network that loses everything."""

    async def find(self, _where):
        await asyncio.Event().wait()


async def test_one_answer_that_never_comes_is_not_the_end(api, server):
    first = lease(api, "one")
    await first.acquire()
    server[f"get {WHERE}"][:1] << (lambda: asyncio.Event().wait())
    async with doing(first.hold()) as [holding]:
        await asyncio.sleep(4 * DURATION_SECONDS)
        assert not holding.done()


async def test_a_server_that_takes_its_time_is_no_reason_to_stop(api, server):
    first = lease(api, "one")
    await first.acquire()

    async def answer():
        await asyncio.sleep(3.0)
        return server.all("coordination.k8s.io/v1/leases", "system")["gradsieve-operator"]

    server[f"get {WHERE}"] << answer
    async with doing(first.hold()) as [holding]:
        await asyncio.sleep(4 * DURATION_SECONDS)
        assert not holding.done()


async def test_of_two_that_ask_at_once_one_gets_it(api):
    async with doing(lease(api, "one").acquire(), lease(api, "two").acquire()) as rivals:
        await asyncio.sleep(DURATION_SECONDS * 0.9)
        assert [task.done() for task in rivals].count(True) == 1

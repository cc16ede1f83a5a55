"""A leader that stood still sends no write by what it had decided before: another may lead by then."""

import time

import aiohttp
import horovod_jobs as jobs
import pytest
from aiohttp import web
from api_server import target
from operator_in_memory import JOB, running, until

from gradsieve_operator.cluster import lease as module
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.fence import Fence, NotLeading
from gradsieve_operator.cluster.lease import Lease
from gradsieve_operator.errors import ApiError

PODS, LEASES = "/pods/", "/leases/"


@pytest.fixture
def clock(monkeypatch):
    """The clock by which a leader judges its last renewal, to be moved by the tests."""
    now = [1000.0]
    monkeypatch.setattr(module, "awake_or_not", lambda: now[0])
    return now


def submit(server) -> None:
    server.objects[JOB, "research", "digits"] = jobs.body()


async def test_a_lease_was_held_lately_from_the_begin_of_a_renewal_until_a_holder_gives_up(server, clock):
    async with Api(Access.find()) as api:
        held = Lease(api, "system", "gradsieve-operator", "one")
        assert not held.held_lately()
        server.before = lambda _: clock.__setitem__(0, clock[0] + 3.0)
        await held.acquire()
        assert held.held_lately()
        clock[0] += module._GIVE_UP_SECONDS - 3.1
        assert held.held_lately()
        clock[0] += 0.2
        assert not held.held_lately()


def test_the_clock_goes_on_while_the_machine_sleeps():
    assert module._CLOCK == time.CLOCK_BOOTTIME


async def test_after_it_stood_still_nothing_is_written_before_the_lease_is_renewed(server, clock):
    submit(server)
    stood = []

    def stand_still(request):
        if PODS in target(request) and not stood:
            stood.append(len(server.writes))
            clock[0] += 20.0

    server.after = stand_still
    async with running(namespace="system", identity="one"):
        await until(lambda: len(server.all("v1/pods")) == 3)
    assert LEASES in server.writes[stood[0]], "the first write after it stood still"


async def test_a_server_behind_a_path_gets_the_lease_as_well(unused_tcp_port_factory):
    port, seen = unused_tcp_port_factory(), []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(f"{request.method} {request.path}")
        return web.Response()

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    fence = Fence()
    fence.may_write = lambda: False
    behind = f"http://127.0.0.1:{port}/k8s/clusters/c-1"
    async with aiohttp.ClientSession(request_class=fence.request_class()) as session:
        await session.put(f"{behind}/apis/coordination.k8s.io/v1/namespaces/system/leases/one")
        with pytest.raises(NotLeading):
            await session.put(f"{behind}/api/v1/namespaces/research/pods/one")
    await runner.cleanup()
    assert seen == ["PUT /k8s/clusters/c-1/apis/coordination.k8s.io/v1/namespaces/system/leases/one"]


async def test_reads_and_the_lease_itself_are_not_held_back(server, clock):
    fence = Fence()
    fence.may_write = lambda: False
    async with Api(Access.find(), fence) as api:
        await api.get("/api/v1/nodes")
        await Lease(api, "system", "gradsieve-operator", "one").acquire()
        with pytest.raises(ApiError, match="not sent, the Lease was not renewed lately"):
            await api.create("/api/v1/namespaces/research/events", {"metadata": {"name": "e"}})
    assert [write for write in server.writes if "events" in write] == []

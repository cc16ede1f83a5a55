"""An API server that has no time for a call is asked for the same again, and not for everything anew."""

import itertools

import horovod_jobs as jobs
import kmock as kmock_library
import pytest
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster import api


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(api, "_BUSY_SECONDS", 0.01)


def busy(server, turns) -> None:
    """Let the server have no time for the writes whose turn is true."""

    def refuse(_request):
        if next(turns):
            raise kmock_library.KubernetesError(status=429, reason="TooManyRequests", message="busy")

    server.before = refuse


async def test_a_job_starts_although_every_second_write_finds_the_server_busy(server, at_once):
    busy(server, itertools.cycle([True, False]))
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    assert "ReconcileError" not in conditions(server)


async def test_one_that_stays_busy_is_left_alone_for_a_while(server, at_once):
    busy(server, itertools.repeat(True))
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running():
        await until(lambda: len(server.writes) > 10)
        assert server.all("v1/pods") == {}
        assert server.writes[: api._BUSY_TRIES] == [server.writes[0]] * api._BUSY_TRIES

"""An operator whose clock is not the API server's judges the age of what that has made by its clock."""

import asyncio
import datetime as dt
from email.utils import format_datetime

import aiohttp.web_response
import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, admitted, bind, running, until

MINUTES = 300.0


@pytest.fixture
def tell_time(server, monkeypatch):
    """Let the server's clock be behind by so many seconds."""

    def behind(seconds: float) -> None:
        server.behind = seconds
        date = lambda: format_datetime(  # noqa: E731 - in place of a function
            dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds), usegmt=True
        )
        monkeypatch.setattr(aiohttp.web_response, "rfc822_formatted_time", date)

    return behind


async def test_pods_are_not_late_for_their_nodes_as_soon_as_they_are_made(server, tell_time):
    tell_time(MINUTES)
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        await asyncio.sleep(2.5)  # the operator looks again after a second
        assert not any(write.startswith("DELETE") for write in server.writes)
        bind(server)
        await until(lambda: admitted(server, "digits") == "Placed")


async def test_a_pod_that_is_late_for_its_node_is_so_by_a_clock_that_is_behind(server, tell_time):
    tell_time(-MINUTES)
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running():
        await until(lambda: any(write.startswith("DELETE") for write in server.writes))
        await until(lambda: admitted(server, "digits") == "PlaceTaken")

"""Events of one second are shown in the order in which they were posted."""

import asyncio

import horovod_jobs as jobs
import pytest
from operator_in_memory import until

from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.events import Events

REASONS = [f"Reason{number}" for number in range(20)]


@pytest.mark.parametrize("clock", ["as it is", "standing still"])
async def test_their_names_are_in_the_order_of_their_posts(server, monkeypatch, clock):
    if clock == "standing still":
        monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    async with Api(Access.find()) as api:
        events = Events(api)
        for reason in REASONS:
            events.post(jobs.body()["metadata"], warning=False, reason=reason, message="")
        posting = asyncio.create_task(events.run())
        await until(lambda: len(server.all("v1/events")) == len(REASONS))
        posting.cancel()
    events = server.all("v1/events")
    assert [events[name]["reason"] for name in sorted(events)] == REASONS

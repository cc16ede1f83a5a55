"""Changes of the scale benchmark go on being made, however long they take to arrive."""

import asyncio
from collections import deque

import pytest
from scale import manifests
from scale.changes import Part

TURNS = 60


def part(size):
    return Part("suspend", [manifests.running_job(index, adapted=False) for index in range(size)])


async def changed(part, under_way):
    """Make changes of which so many are always under way; return how many of them took one back."""
    waiting, back = deque(), 0
    for turn in range(TURNS):
        taking = asyncio.ensure_future(part.take())
        await asyncio.sleep(0)
        assert taking.done(), f"turn {turn} waits for a job"
        job = taking.result()
        back += job.changed
        job.changed = not job.changed
        waiting.append(job)
        if len(waiting) > under_way:
            part.put(waiting.popleft())
    return back


@pytest.mark.parametrize("under_way", [0, 1, 2, 5, 8])
async def test_no_change_waits_for_a_job_that_a_further_change_sets_free(under_way):
    back = await changed(part(20), under_way)

    assert TURNS // 3 <= back <= TURNS // 2


async def test_a_tenth_of_many_jobs_stays_changed():
    many = part(200)

    back = await changed(many, under_way=0)

    assert TURNS - 2 * back == 20

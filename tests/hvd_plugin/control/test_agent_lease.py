"""An agent lets go of its ranks in time, whatever it hears late, and not before."""

import asyncio
import time

from gradsieve_hvd.control.agent_lease import AgentLease
from gradsieve_hvd.control.contract import FORSAKEN_SECONDS, SILENCE_SECONDS

WHOLE = SILENCE_SECONDS + FORSAKEN_SECONDS
ABOUT = 0.3


async def forsaken_after(*steps, most=2.0) -> float | None:
    """Return after how many seconds the ranks are let go of; None if they are not within ``most``."""
    over = asyncio.Event()
    lease, began = AgentLease(over.set), time.monotonic()
    for step in steps:
        step(lease, began)
    try:
        async with asyncio.timeout(most):
            await over.wait()
    except TimeoutError:
        return None
    return time.monotonic() - began


def heard(ago: float):
    return lambda lease, now: lease.heard_at(now - ago)


def disconnected(lease, _now):
    lease.disconnected()


async def test_it_counts_from_when_the_coordinator_heard_of_the_agent():
    seconds = await forsaken_after(heard(WHOLE - ABOUT))
    assert seconds is not None
    assert seconds > ABOUT - 0.05
    assert await forsaken_after(heard(WHOLE - ABOUT), heard(0.0)) is None


async def test_a_connection_that_ends_shortens_it_and_never_lengthens_it():
    seconds = await forsaken_after(heard(WHOLE - ABOUT), disconnected)
    assert seconds is not None
    assert seconds > ABOUT - 0.05
    seconds = await forsaken_after(heard(0.0), disconnected, most=FORSAKEN_SECONDS + 2.0)
    assert seconds is not None
    assert seconds > FORSAKEN_SECONDS - 0.05


async def test_a_connection_that_is_back_in_time_keeps_the_ranks():
    assert await forsaken_after(heard(WHOLE - ABOUT), disconnected, heard(0.0)) is None

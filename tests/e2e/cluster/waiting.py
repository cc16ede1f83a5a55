"""Wait for something with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.errors import ClusterError

T = TypeVar("T")
_PAUSE = 0.1


def wait_for(
    what: str,
    condition: Callable[[], T | None],
    seconds: float,
    ended: Callable[[], dict[str, int]] = dict,
) -> T:
    """Call `condition` until it returns something true, and return that.

    Args:
        what: for the message when it does not come.
        condition: asked ten times a second.
        seconds: the deadline.
        ended: processes that the wait depends on and that have ended, with their status: no use to wait
            longer.

    Raises:
        ClusterError: the deadline passed, or a process ended.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if gone := ended():
            raise ClusterError(f"{what}: ended early, with status: {gone}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not there after {seconds} s")
        time.sleep(_PAUSE)
    return found

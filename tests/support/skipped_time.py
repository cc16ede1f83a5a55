"""Waiting that takes no time: when nothing happens, the loop's clock goes on to its next timer at once.

However slowly the process runs, no timer is late. Not for what waits for threads or other processes.
"""

from __future__ import annotations

import asyncio

import pytest

_NOTHING_SECONDS = 0.02
"""Without a byte on any socket for so long, nothing is going to happen: both ends are in this process."""


def skip_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the running loop's clock stand still while something happens, and jump while nothing does."""
    loop = asyncio.get_running_loop()
    now, select = loop.time(), loop._selector.select  # type: ignore[attr-defined]

    def jump(timeout: float | None = None) -> list[object]:
        nonlocal now
        ready: list[object] = select(timeout and _NOTHING_SECONDS)
        if timeout and not ready:
            now += timeout
        return ready

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop._selector, "select", jump)  # type: ignore[attr-defined]

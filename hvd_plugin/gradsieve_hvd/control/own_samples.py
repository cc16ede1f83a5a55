"""What a rank tells of itself: handed to its own host's agent, which is the only one to speak for it."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any, Final

from gradsieve_hvd.control import contract
from gradsieve_hvd.control.reporter_clock import StepTimes

_PATIENCE_SECONDS: Final = 0.01
"""How long an agent may take to make room: it reads within a millisecond, unless its machine is very busy."""


def own_sample(times: StepTimes, share: float, computing: float, throttled: float | None) -> dict[str, float]:
    """Return a rank's times per step, as docs/telemetry.md has them.

    Args:
        times: from step to step, and what of that it waited.
        share: its part of a batch, in equal parts.
        computing: seconds of a step that a larger share would make longer.
        throttled: in which part of the time its container's CPU limit was used up; None without one.
    """
    work = max(times.seconds - times.wait_seconds, 0.0)
    told = {"stepSeconds": work, "waitSeconds": times.wait_seconds}
    if share != 1.0:
        told["equalShareSeconds"] = max(work + computing * (1 / share - 1), 0.0)
    if throttled is not None:
        told["throttledShare"] = throttled
    return told


def tell_agent(rank: int, plan: int, step: int | None, sample: dict[str, float]) -> None:
    """Hand a sample to the agent of this host; without one, and where it does not listen, nothing is told.

    Args:
        rank: this one.
        plan: generation of the one that it follows.
        step: after which all ranks measure; None where each steps at its own pace.
        sample: see `own_sample`.
    """
    path = os.environ.get(contract.SAMPLES)
    if not path:
        return
    told: dict[str, Any] = {
        "rank": rank,
        "generation": int(os.environ.get(contract.JOB_GENERATION) or 0),
        "appliedPlanGeneration": plan,
        **sample,
    }
    if step is not None:
        told["measuredStep"] = step
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.settimeout(_PATIENCE_SECONDS)
        sender.sendto(json.dumps(told).encode(), path)

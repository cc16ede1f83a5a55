"""What rank 0 makes of the parts that all ranks have told: a sample of the job, see docs/telemetry.md."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from gradsieve_hvd.control import contract
from gradsieve_hvd.control.link_probe import LinkProbe
from gradsieve_hvd.control.other_densities import received_at_other_densities
from gradsieve_hvd.control.plan import MODES
from gradsieve_hvd.control.reported import reported_loss
from gradsieve_hvd.engine.statistics import StepStatistics

Part = dict[str, Any]
"""One rank's part of a message, see `gradsieve_hvd.control.plan_exchange`."""


def telemetry_sample(
    step: int,
    measured: int | None,
    sent: StepStatistics,
    parts: Sequence[Part],
    plan: int,
    link: LinkProbe,
    committed: int | None,
) -> dict[str, Any]:
    """Return the fields of a sample.

    Args:
        step: steps taken.
        measured: after which of them the parts were; None where each rank steps at its own pace.
        sent: by rank 0 in that one.
        parts: of all ranks, by rank.
        plan: generation of the one that they follow.
        link: what probes have told.
        committed: newest step of a TrainingState; None without one.
    """
    sample: dict[str, Any] = {
        "generation": int(os.environ.get(contract.JOB_GENERATION) or 0),
        "step": step,
        "stepSeconds": _mean(parts, "seconds"),
        "waitSeconds": _mean(parts, "wait"),
        **_selecting(parts),
        "wireBytesPerStep": round(_mean(parts, "bytes")),
        **_measured_link(parts, link, sent),
        "denseBytesPerStep": round(_mean(parts, "dense")),
        "densityPermille": round(1000 * _mean(parts, "density"), 3),
        "appliedPlanGeneration": plan,
        "time": time.time(),
    }
    names = {ours: name for name, ours in MODES.items()}
    if modes := [names[mode] for mode in common_modes(parts)]:
        sample |= {"mode": modes[0], "modes": modes}
    if (loss := reported_loss()) is not None:
        sample["loss"] = loss
    if committed is not None:
        sample["committedStep"] = committed
    if measured is not None:
        sample["measuredStep"] = measured
    return sample


def common_modes(parts: Sequence[Part]) -> list[str]:
    """Return the modes that all ranks can change to, the present one first."""
    return [mode for mode in parts[0]["modes"] if all(mode in part["modes"] for part in parts)]


def _mean(parts: Sequence[Part], name: str) -> float:
    return statistics.fmean(part[name] for part in parts)


def _selecting(parts: Sequence[Part]) -> dict[str, float]:
    """Return what selecting takes; nothing in modes whose rounds or servers do not tell it apart."""
    seconds = _mean(parts, "select")
    return {"selectSeconds": seconds} if seconds else {}


def _measured_link(parts: Sequence[Part], link: LinkProbe, sent: StepStatistics) -> dict[str, Any]:
    """Return what a step receives and the link is worth; nothing before it was probed, nor in modes that do
    not tell what ranks receive: no bytes would mean that more of them cost nothing.
    """
    received = round(_mean(parts, "received"))
    if not received or not link.bytes_per_second:
        return {}
    return {
        "receivedBytesPerStep": received,
        "startUpSeconds": link.start_up,
        "bytesPerSecond": round(link.bytes_per_second),
        "otherDensities": received_at_other_densities(received, sent),
    }

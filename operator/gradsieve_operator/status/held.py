"""Why the operator leaves a job's plan as it is, although the job asks for something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gradsieve_operator.decide import RUN_TIME_MODES, Decision, ObservedState


class Held(NamedTuple):
    """Whether something keeps the plan as it is, what in one word, and in a sentence."""

    held: bool
    reason: str
    message: str


def held(observed: ObservedState, decision: Decision, before: Mapping[str, Any] | None) -> Held | None:
    """Return what holds of a job's adaptation; None for a job that never asked for any.

    What stays as it is for longest is said first: what the program cannot do.

    Args:
        observed: what was seen.
        decision: what was decided.
        before: the condition before; None where the job had none.
    """
    mode, adapts = observed.steering.parallelism.mode, observed.steering.adaptation.enabled
    if not adapts and mode == "Synchronous":
        nothing = Held(
            held=False, reason="NotAsked", message="neither adaptation nor another mode is asked for"
        )
        return None if before is None else nothing
    if decision.progress.finished is not None:
        return Held(held=False, reason="Ended", message="the job has ended")
    return _cannot(observed, decision) or _measured(observed, decision, before)


def _cannot(observed: ObservedState, decision: Decision) -> Held | None:
    """Return what the job asks for that nothing measured will bring."""
    mode, adapts = observed.steering.parallelism.mode, observed.steering.adaptation.enabled
    if mode == "Auto" and not adapts:
        message = "mode is Auto, and spec.adaptation.enabled is not true"
        return Held(held=True, reason="Disabled", message=message)
    can = decision.progress.modes
    if mode == "Synchronous" or mode in can or (mode == "Auto" and can):
        return None
    said = observed.coordinator is not None and observed.coordinator.modes is not None
    if mode not in (*RUN_TIME_MODES, "Auto") or said or can:
        why = decision.held.message if decision.held is not None else ""
        also = f", and only densities are adapted{f' ({why})' if why else ''}" if mode == "Auto" else ""
        cannot = "modes" if mode == "Auto" else f"to mode {mode}"
        message = f"ranks train synchronously: their program cannot change {cannot} while it runs{also}"
        return Held(held=True, reason="ProgramCannot", message=message)
    return None


def _measured(observed: ObservedState, decision: Decision, before: Mapping[str, Any] | None) -> Held:
    if decision.held is not None:
        hold = decision.held
        return Held(held=not hold.settled, reason=hold.reason, message=hold.message)
    if not decision.progress.running:
        return Held(held=True, reason="NotRunning", message="no ranks run")
    if not observed.steering.adaptation.enabled:
        mode = observed.steering.parallelism.mode
        if mode in decision.progress.modes:
            return Held(held=False, reason="Following", message=f"ranks are told to train in mode {mode}")
        message = "the program has not said yet whether it can change modes"
        return Held(held=True, reason="NoTelemetry", message=message)
    if before is not None and decision.progress.adaptation == observed.progress.adaptation:
        # There was something else to do.
        return Held(held=before["status"] == "True", reason=before["reason"], message=before["message"])
    return Held(held=False, reason="Adapting", message="the plan follows what is measured")

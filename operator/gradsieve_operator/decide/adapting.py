"""Adaptation's part in a decision: what author and program allow, and the plan that comes of measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from gradsieve_operator.adapt import Asked, Hold, Memory, Plan, adapt, plan_in_force
from gradsieve_operator.decide import requests
from gradsieve_operator.decide.members import newest
from gradsieve_operator.decide.observed_state import ObservedState
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.values import DENSE_ALGORITHMS, Mode

RUN_TIME_MODES: Final[tuple[Mode, ...]] = ("Synchronous", "Balanced", "Local")
"""Modes that some program can change to while it runs; each says which ones it can."""


def asked(observed: ObservedState, compression: Compression, progress: Progress) -> Asked:
    """Return what a job's author and its program allow.

    Args:
        observed: what was seen.
        compression: what ranks go by, without what adaptation has made of it.
        progress: of the job; it says what the program can change to, and which plan ranks have been given.
    """
    steering = observed.steering
    mode, adaptation = steering.parallelism.mode, steering.adaptation
    modes: tuple[Mode, ...] = progress.modes or ("Synchronous",)
    density = compression.density_permille if compression.algorithm not in DENSE_ALGORITHMS else None
    limits = (compression.min_density_permille, compression.max_density_permille)
    lowest, highest = (density if limit is None else limit for limit in limits)
    return Asked(
        plan=Plan("Synchronous", density)
        if mode not in modes
        else Plan(mode, density, steering.parallelism.local_steps),
        lowest_permille=lowest,
        highest_permille=highest,
        choose_mode=mode == "Auto",
        modes=modes,
        adaptation=adaptation,
        generation=progress.plan_generation,
    )


def adapted(
    observed: ObservedState, compression: Compression, progress: Progress
) -> tuple[Progress, Hold | None]:
    """Return the progress with what adaptation remembers now, and why it holds the plan; None if it does not.

    Measurements are looked at while ranks run, by the plan that they were given and whose digest is recorded.
    While it cannot be told what job and policy ask for, everything stays as it is.
    """
    if observed.unresolved:
        return progress, None
    if not observed.steering.adaptation.enabled:
        return replace(progress, adaptation=None), None
    wish = asked(observed, compression, progress)
    memory = progress.adaptation or Memory()
    if memory.asked != wish.key:
        memory = Memory(asked=wish.key)
    parallelism = observed.steering.parallelism
    follow = requests.plan(compression, plan_in_force(wish, memory), progress.modes, parallelism)
    now_sent = requests.plan_digest(follow)
    if not progress.running or observed.coordinator is None:
        return replace(progress, adaptation=memory), None
    if now_sent != progress.plan:
        return replace(progress, adaptation=memory), Hold("NotApplied", "a new plan is on its way", memory)
    window = observed.coordinator.window
    if window is not None:
        window = replace(window, trouble=_trouble(observed, window.host))
    found = adapt(window, wish, memory, observed.now)
    return replace(progress, adaptation=found.memory), found if isinstance(found, Hold) else None


def _trouble(observed: ObservedState, host: str) -> str:
    """Return what the cluster knows of the node that a rank's pod is on; empty for nothing."""
    pod = newest(observed.pods).get(host)
    if pod is None:
        return ""
    node = (observed.nodes or {}).get(pod.node)
    known = (*(node.troubles if node is not None else ()), *observed.signals.get(pod.node, ()))
    return f"its node {pod.node}: {', '.join(known)}" if known else ""


def plan_to_follow(observed: ObservedState, compression: Compression, progress: Progress) -> Plan:
    """Return how ranks shall train."""
    wish, memory = asked(observed, compression, progress), progress.adaptation
    if memory is None:
        return wish.plan
    if observed.unresolved and memory.plan is not None:
        return memory.plan
    return plan_in_force(wish, memory)


def why(progress: Progress) -> dict[str, str]:
    """Return why ranks train as they do, for people who look at the job's page; empty if nobody decided."""
    memory = progress.adaptation
    if memory is None or not memory.evidence:
        return {}
    return {"reason": memory.reason, "evidence": memory.evidence}


def plan_to_send(observed: ObservedState, compression: Compression, progress: Progress) -> dict[str, Any]:
    """Return what ranks are told, but for the generation; empty if nothing is: see `requests.plan`."""
    follow = plan_to_follow(observed, compression, progress)
    return requests.plan(compression, follow, progress.modes, observed.steering.parallelism)

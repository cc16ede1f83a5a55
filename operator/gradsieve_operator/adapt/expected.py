"""What a plan is expected to do for the time until a loss is reached.

::

    time to a loss  ~  seconds of a step  /  statistical efficiency

A step of as many samples as all ranks take together in one synchronous step. The statistical efficiency is
what such a step does for the loss, compared with a synchronous one that sends every entry.
"""

from __future__ import annotations

import math
from typing import Final

from gradsieve_operator.adapt.plans import Plan
from gradsieve_operator.adapt.window import Window, Work

_LOST_PER_DECADE: Final = 0.025
"""Of the efficiency, by each tenfold reduction of the density: dense training reached 95 % after 50 steps, a
density of 1 % after 52 and 53 (docs/reports.md, digits)."""

_LATE, _LATE_AT_TIMES = 0.95, 0.8
"""Efficiency of Adaptive with workers that are always slow, and with workers that are slow at times: what it
needs in docs/modes.md (slow4, wander; transient) against what its rate of samples alone would let it need."""

_LOST_PER_LOCAL_STEP: Final = 0.03
"""Of the efficiency, by each step between two exchanges, against a low density at each: a small training
without tuned rates was with 15 local steps where 1 % top-k is after 0.71 times as many (docs/modes.md)."""


def time_to_loss(plan: Plan, now: Plan, window: Window) -> float:
    """Return what a plan's time to a loss is expected to be proportional to, in seconds of a step.

    Args:
        plan: to judge.
        now: the plan that was in force in ``window``.
        window: what was measured.
    """
    return step_seconds(plan, now, window) / efficiency(plan, window.work)


def step_seconds(plan: Plan, now: Plan, window: Window) -> float:
    """Return the seconds of a step that are expected.

    1. Under the same mode, ranks compute and wait for each other as they did.
    2. Under another mode, as the coordinator says, who knows every sample of every rank; or where it does
       not, as that mode's rule makes of the ranks' own work.
    3. Exchanging takes time in proportion to exchanges in Local, and by `_exchange` to entries.
    """
    exchange = _exchange(plan, now, window) * (now.local_steps or 1) / (plan.local_steps or 1)
    if plan.mode == now.mode:
        return max(window.step - window.delay, window.work.harmonic) + exchange
    promised = window.promised.computing.get(plan.mode)
    return (computing(plan, window.work) if promised is None else promised) + exchange


def _exchange(plan: Plan, now: Plan, window: Window) -> float:
    """Return the seconds of an exchange that ranks have to wait for, with as many entries as ``plan`` sends.

    1. What the coordinator says, if it does: ranks know how many bytes other densities make.
    2. What more bytes take, or fewer save, by the link's measured bandwidth. What ranks wait for besides,
       start-up times and one another, stays. Bytes are taken to be in proportion to the entries.
    3. Without a measured link: in proportion to the entries. That knows no start-up times. No more is ever
       saved than so: measurements lag behind a link that changes.

    Neither knows what overlaps with computing: each change is judged by what came of it.
    """
    if plan.density_permille is None or now.density_permille is None:
        return window.delay
    factor = plan.density_permille / now.density_permille
    promised = window.promised.exchange_seconds(factor)
    if promised is not None:
        return promised
    if window.bandwidth_seconds is None:
        return window.delay * factor
    by_bandwidth = window.delay + (factor - 1) * window.bandwidth_seconds
    return by_bandwidth if factor >= 1 else max(by_bandwidth, window.delay * factor)


def computing(plan: Plan, work: Work) -> float:
    """Return the seconds of a step without its exchange under the plan's mode.

    1. Synchronous: of whichever rank is the slowest then.
    2. Balanced: shares even out who is always slow; who is slow at times is waited for.
    3. Adaptive: every rank at its own rate, the fast ones at the median's.
    4. Local: within some steps, short delays even out.
    """
    if plan.mode == "Balanced":
        return work.harmonic + (work.peak - work.slowest)
    if plan.mode == "Local":
        return work.slowest
    return work.paced if plan.mode == "Adaptive" else work.peak


def efficiency(plan: Plan, work: Work) -> float:
    """Return the statistical efficiency; of a mode that is never chosen by itself, that of its density."""
    sent = plan.density_permille or 1000
    by_density = 1 - _LOST_PER_DECADE * math.log10(1000 / sent)
    if plan.mode == "Adaptive":
        return by_density * (_LATE_AT_TIMES if slow_at_times(work) else _LATE)
    if plan.mode == "Local":
        return by_density / (1 + _LOST_PER_LOCAL_STEP * ((plan.local_steps or 1) - 1))
    return by_density


def slow_at_times(work: Work) -> bool:
    """Whether ranks are slow in turns rather than one always."""
    return work.peak - work.slowest > work.slowest - work.harmonic

"""Deciding whether another plan would bring a job to its loss sooner, and whether the last change has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gradsieve_operator.adapt import wording
from gradsieve_operator.adapt.expected import efficiency, time_to_loss
from gradsieve_operator.adapt.memory import MOST_DOUBLINGS, Memory, Trial
from gradsieve_operator.adapt.plans import Asked, Plan, choices
from gradsieve_operator.adapt.window import Window

_STALE_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 2.0
_QUIET: Final = 8
"""Cool-downs without a change after which the next change begins with a short one again."""

_SETTLING_SECONDS: Final = 40.0
"""Before that no change is judged, however short the cool-down: shares of batches follow speed some ten steps
after the mode has changed, and one half of the samples is from then on."""

_NOISE: Final = 4
"""Standard errors of a step's time that a change must gain: it is judged by half of that."""


@dataclass(frozen=True, slots=True)
class Change:
    """Another plan, and what is remembered of it: with it reason, evidence and the expected gain."""

    plan: Plan
    memory: Memory


@dataclass(frozen=True, slots=True)
class Hold:
    """The plan stays.

    Attributes:
        reason: why, in one word.
        message: the same in a sentence, which does not change from look to look.
        memory: what is remembered now.
        settled: whether it stays because nothing better is known, not because something is in the way.
        again: seconds after which something may be decided; None if that is not known.
    """

    reason: str
    message: str
    memory: Memory
    settled: bool = False
    again: float | None = None


def plan_in_force(asked: Asked, memory: Memory) -> Plan:
    """Return the plan that ranks shall follow."""
    return memory.plan if memory.plan is not None and memory.asked == asked.key else asked.plan


def adapt(window: Window | None, asked: Asked, memory: Memory, now: float) -> Change | Hold:
    """Decide on a job's plan, from what was measured under the present one.

    1. Another wish of the author's begins anew with what is asked for.
    2. Nothing is concluded from a window that is missing, absurd, of another plan, too short or too old.
    3. Until its cool-down is over, a plan stays. Then a change that was made shortly before is judged by what
       it has gained, in the later half of its samples; it is taken back if that is less than half of what was
       expected.
    4. Of all plans that come close to the shortest expected time to a loss, the one that is preferred
       otherwise (in step, many entries) is the candidate. It must gain more than hysteresis and noise, or be
       preferred to the present one.
    5. A candidate must stay one for some time.
    6. A change that undoes the last one doubles the cool-down.

    Args:
        window: what was measured; None if the coordinator does not say.
        asked: what the author allows.
        memory: what the last look has left; of another job's author, of another wish, or empty: begins anew.
        now: seconds since the epoch.
    """
    if memory.asked != asked.key:
        memory = Memory(asked=asked.key)
    memory = replace(memory, since=min(memory.since, now), candidate_since=min(memory.candidate_since, now))
    if not asked.adaptation.enabled:
        return Hold("Disabled", "spec.adaptation.enabled is not true", Memory(asked=asked.key))
    doubt = _doubt(window, asked)
    if window is None or doubt is not None:
        reason, message = doubt or ("NoTelemetry", "")
        missing = asked.adaptation.min_samples - window.samples if window is not None else 0
        return Hold(reason, message, memory, again=_SAMPLE_SECONDS * missing if missing > 0 else None)
    cooldown = float(asked.adaptation.cooldown * 2**memory.doublings)
    if memory.trial is not None:
        cooldown = max(cooldown, _SETTLING_SECONDS)
    if memory.since and now < memory.since + cooldown:
        message = f"nothing changes within {cooldown:.0f} s of the last change"
        return Hold("CoolDown", message, _without_candidate(memory), again=memory.since + cooldown - now)
    plan = plan_in_force(asked, memory)
    if memory.trial is not None:
        undone = _judged(window, plan, memory, now)
        if undone is not None:
            return undone
        memory = replace(memory, trial=None)
    return _candidate(window, asked, plan, memory, now)


def _doubt(window: Window | None, asked: Asked) -> tuple[str, str] | None:
    """Return why nothing can be concluded from a window, as a word and a sentence; None if something can."""
    if window is None:
        return "NoTelemetry", "the coordinator does not say what steps take"
    flaw = window.flaw()
    if flaw:
        return "UnusableTelemetry", f"what the job reports cannot be: {flaw}"
    if window.generation != asked.generation:
        return "NotApplied", "ranks do not follow the present plan yet"
    if window.silent:
        return "SilentRanks", "some ranks tell nothing of themselves, and one may be the slow one"
    if window.samples < asked.adaptation.min_samples:
        return "TooFewSamples", f"fewer than {asked.adaptation.min_samples} samples of the present plan"
    if window.age > _STALE_SECONDS:
        return "StaleTelemetry", f"the last sample is older than {_STALE_SECONDS:.0f} s"
    return None


def _judged(window: Window, plan: Plan, memory: Memory, now: float) -> Change | None:
    """Return the change back to the plan before, if the present one has not proved itself."""
    assert memory.trial is not None
    step = window.step if window.recent is None else window.recent
    gain = memory.trial.seconds / (step / efficiency(plan, window.work)) - 1
    if gain >= memory.trial.least or memory.left is None:
        return None
    evidence = wording.disproved(plan, memory.trial.expected, gain)
    undone = _changed(memory, plan, memory.left, now, quiet_after=float("inf"))
    return Change(memory.left, replace(undone, reason="GainMissing", evidence=evidence))


def _candidate(window: Window, asked: Asked, plan: Plan, memory: Memory, now: float) -> Change | Hold:
    settings = asked.adaptation
    times = {each: time_to_loss(each, plan, window) for each in choices(asked, plan, window)}
    margin = max(settings.hysteresis_percent / 100, _NOISE * window.noise)
    shortest = min(times.values())
    close = (1 + settings.hysteresis_percent / 200) * shortest
    target = max((each for each in times if times[each] <= close), key=lambda each: each.rank)
    quick = times[plan] > (1 + margin) * shortest
    if target == plan or not (quick or target.rank > plan.rank):
        settled = len(times) > 1
        word, message = ("AsGoodAsItGets", wording.settled(plan)) if settled else wording.bound(asked)
        return Hold(word, message, _without_candidate(memory), settled=settled)
    name = wording.direction(plan, target)
    if name != memory.candidate:
        memory = replace(memory, candidate=name, candidate_since=now)
    if now - memory.candidate_since < settings.interval:
        message = f"a change of the plan must look worth it for {settings.interval} s"
        again = memory.candidate_since + settings.interval - now
        return Hold("Confirming", message, memory, again=again)
    expected = times[plan] / times[target] - 1
    seconds = window.step / efficiency(plan, window.work)
    trial = Trial(seconds, expected, expected / 2 if quick else expected - margin)
    quiet = _QUIET * settings.cooldown * 2**memory.doublings
    changed = replace(_changed(memory, plan, target, now, quiet_after=quiet), trial=trial)
    reason, evidence = wording.reasons(plan, target, window, expected)
    return Change(target, replace(changed, reason=reason, evidence=evidence))


def _changed(memory: Memory, plan: Plan, target: Plan, now: float, *, quiet_after: float) -> Memory:
    """Return what is remembered of a change from ``plan`` to ``target``; a reversal doubles the cool-down."""
    doublings = memory.doublings
    if memory.left is not None and _undoes(plan, target, memory.left):
        doublings = 0 if now - memory.since > quiet_after else min(doublings + 1, MOST_DOUBLINGS)
    return Memory(asked=memory.asked, plan=target, since=now, left=plan, doublings=doublings)


def _undoes(plan: Plan, target: Plan, left: Plan) -> bool:
    """Whether a change from ``plan`` to ``target`` takes back some of the one from ``left`` to ``plan``."""
    then = (plan.density_permille or 0) - (left.density_permille or 0)
    later = (target.density_permille or 0) - (plan.density_permille or 0)
    return target == left or then * later < 0 or (target.mode == left.mode != plan.mode)


def _without_candidate(memory: Memory) -> Memory:
    return replace(memory, candidate="", candidate_since=0.0)

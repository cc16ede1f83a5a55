"""What is said about decisions: a word that scripts compare, and the evidence in a sentence."""

from __future__ import annotations

from gradsieve_operator.adapt.expected import slow_at_times
from gradsieve_operator.adapt.plans import Asked, Plan
from gradsieve_operator.adapt.window import Window

_NOTEWORTHY = 0.1
"""Part of the time in which a CPU limit is used up before that is said."""


def direction(plan: Plan, target: Plan) -> str:
    """Return what two changes have in common that are meant alike: the mode, and where the density goes."""
    before, after = plan.density_permille or 0, target.density_permille or 0
    return f"{target.mode}{'+' if after > before else '-' if after < before else ''}"


def reasons(plan: Plan, target: Plan, window: Window, expected: float) -> tuple[str, str]:
    """Return why ``target`` takes the place of ``plan``, as a word and a sentence.

    Args:
        plan: the present one.
        target: the next one.
        window: what was measured.
        expected: gain, as a part.
    """
    word, found = _found(plan, target, window)
    return word, f"{found}; {target} instead of {plan} is expected to {_gain(expected)}"


def disproved(plan: Plan, expected: float, gain: float) -> str:
    """Return why ``plan`` is taken back."""
    return f"{plan} was expected to {_gain(expected)}, and what was measured is that it would {_gain(gain)}"


def settled(plan: Plan) -> str:
    """Return that nothing better than ``plan`` is known."""
    return f"no other plan promises to be better than {plan}"


def bound(asked: Asked) -> tuple[str, str]:
    """Return why there is nothing to choose from."""
    if asked.plan.density_permille is None:
        return "NoDensity", "give compression.densityPermille, and an algorithm that selects"
    return "NoBounds", "give compression.minDensityPermille or maxDensityPermille: there is nothing to choose"


def _found(plan: Plan, target: Plan, window: Window) -> tuple[str, str]:
    work, share = window.work, window.delay / window.step
    exchange = f"exchanging takes {share:.0%} of a step of {1000 * window.step:.0f} ms"
    slowest = f"{work.slowest / work.harmonic:.2f} times as long as the mean"
    if target.mode == plan.mode:
        return ("LongDelay" if target.rank < plan.rank else "IdleLink"), exchange
    if target.mode == "Local":
        return "ExchangeBound", f"{exchange} at the lowest density"
    if target.mode == "Synchronous":
        return "EvenRanks", f"the slowest rank works {slowest}"
    if slow_at_times(work):
        times = work.peak / work.harmonic
        return "TransientStragglers", f"ranks in turns work {times:.2f} times as long as the mean"
    where = f" on {window.host}" if window.host else ""
    return "SlowTail", f"the slowest rank{where} always works {slowest}{_explained(window)}"


def _explained(window: Window) -> str:
    """Return what is known of the slowest rank's container and node."""
    found = []
    if window.throttled >= _NOTEWORTHY:
        found.append(f"its container's CPU limit was used up in {window.throttled:.0%} of the time")
    if window.trouble:
        found.append(window.trouble)
    return f" ({', '.join(found)})" if found else ""


def _gain(gain: float) -> str:
    """Return what becomes of the time until a loss is reached."""
    change = 1 - 1 / (1 + gain) if gain > -1 else float("-inf")
    return f"{'shorten' if change >= 0 else 'lengthen'} the time to a loss by {abs(change):.0%}"

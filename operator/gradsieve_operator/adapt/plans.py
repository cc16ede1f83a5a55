"""What the operator may choose for a job, and what its author allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gradsieve_operator.adapt.window import Window
from gradsieve_operator.spec import Adaptation
from gradsieve_operator.spec.values import Mode

_PREFERRED: Final[tuple[Mode, ...]] = ("Local", "Adaptive", "Balanced", "Synchronous")
"""Modes that are chosen by themselves, the best understood last. Bounded staleness and asynchronous training
lose in docs/modes.md wherever something else wins: they are for authors who ask for them."""

_MOST_LOCAL_STEPS: Final = 16
_FACTOR: Final = 4
"""Densities rise by this factor at once at most: what more would take of a link, nobody has measured yet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How ranks train.

    Attributes:
        mode: when gradients become weights.
        density_permille: entries sent, of a thousand; None: the program's own affair.
        local_steps: between two exchanges, in mode Local; None elsewhere.
    """

    mode: Mode
    density_permille: int | None = None
    local_steps: int | None = None

    @property
    def rank(self) -> tuple[int, int, int]:
        """What plans are preferred by where time does not decide: rather in step, rather more entries."""
        known = _PREFERRED.index(self.mode) if self.mode in _PREFERRED else -1
        return known, -(self.local_steps or 0), self.density_permille or 0

    def __str__(self) -> str:
        density = f", density {self.density_permille} ‰" if self.density_permille is not None else ""
        local = f" of {self.local_steps} steps" if self.local_steps is not None else ""
        return f"{self.mode}{local}{density}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a job's author allows, and what its program can.

    Attributes:
        plan: that the author asks for, to begin with.
        lowest_permille, highest_permille: limits of densities; None for both: the density stays.
        choose_mode: whether the operator may choose the mode.
        modes: that the program can change to while it runs.
        adaptation: how carefully.
        generation: of the plan that ranks have been given.
    """

    plan: Plan
    lowest_permille: int | None = None
    highest_permille: int | None = None
    choose_mode: bool = False
    modes: tuple[Mode, ...] = ("Synchronous",)
    adaptation: Adaptation = field(default_factory=Adaptation)
    generation: int = 0

    @property
    def key(self) -> str:
        """What tells wishes apart: another one begins anew."""
        bounds = f"{self.lowest_permille}-{self.highest_permille}"
        mode = "Auto" if self.choose_mode else self.plan.mode
        return f"{mode}/{self.plan.density_permille}/{self.plan.local_steps}/{bounds}"


def choices(asked: Asked, now: Plan, window: Window) -> Iterator[Plan]:
    """Yield the plans that may follow ``now``, itself among them."""
    yield now
    for density in _densities(asked, now):
        for mode in _modes(asked, now):
            if mode != "Local":
                yield Plan(mode, density)
    if "Local" in _modes(asked, now) and now.density_permille == asked.lowest_permille:
        # Before that, fewer entries are the milder remedy.
        full = window.delay * (now.local_steps or 1)
        steps = min(max(math.ceil(full / window.work.harmonic), 2), _MOST_LOCAL_STEPS)
        yield replace(now, mode="Local", local_steps=steps)


def _modes(asked: Asked, now: Plan) -> tuple[Mode, ...]:
    if not asked.choose_mode:
        return (now.mode,)
    return tuple(mode for mode in _PREFERRED if mode in asked.modes)


def _densities(asked: Asked, now: Plan) -> Sequence[int | None]:
    lowest, highest, density = asked.lowest_permille, asked.highest_permille, now.density_permille
    if lowest is None or highest is None or density is None:
        return [density]
    home = asked.plan.density_permille or density
    most = min(highest, max(_FACTOR * density, home))
    steps = {density // 4, density // 2, density, 2 * density, 4 * density, lowest, home, most}
    return sorted(each for each in steps if lowest <= each <= most)

"""What adaptation remembers of a job: small, and other than before only where something was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradsieve_operator.adapt.plans import Plan
from gradsieve_operator.errors import SpecError
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import MAX_DENSITY, MAX_LOCAL_STEPS, MODES

MOST_DOUBLINGS: Final = 6
"""The cool-down grows to 64 times its length: two hours, of two minutes."""

_LONGEST: Final = 512
_LATEST: Final = 1e11


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that has to prove itself.

    Attributes:
        seconds: what the time to a loss was proportional to before it; see `time_to_loss`.
        expected: gain that was expected, as a part: 0.5 for half as many steps again in the same time.
        least: gain with which it stays; less than nothing where it was not made to gain time.
    """

    seconds: float
    expected: float
    least: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier looks have decided. Times are seconds since the epoch.

    Attributes:
        asked: the wish that all of it is about; see `Asked.key`.
        plan: that is in force; None: the one that is asked for.
        since: when it was chosen.
        left: the plan before it; None before the first change.
        doublings: how often the cool-down was doubled.
        trial: what it has to prove; None once it has.
        candidate: the plan that looks better, by its mode and the direction of its density; empty for none.
        candidate_since: for how long.
        reason: why the plan was chosen, in one word.
        evidence: the same in a sentence.
    """

    asked: str = ""
    plan: Plan | None = None
    since: float = 0.0
    left: Plan | None = None
    doublings: int = 0
    trial: Trial | None = None
    candidate: str = ""
    candidate_since: float = 0.0
    reason: str = ""
    evidence: str = ""

    def manifest(self) -> dict[str, Any]:
        """Return it as JSON's objects and numbers, without what is unset."""
        told = {
            "asked": self.asked,
            "plan": _told(self.plan),
            "since": self.since,
            "left": _told(self.left),
            "doublings": self.doublings,
            "trial": self.trial and [self.trial.seconds, self.trial.expected, self.trial.least],
            "candidate": self.candidate,
            "candidateSince": self.candidate_since,
            "reason": self.reason,
            "evidence": self.evidence,
        }
        return {name: value for name, value in told.items() if value}

    @classmethod
    def read(cls, found: Mapping[str, Any], where: str) -> Memory:
        """Return what `manifest` has written.

        Raises:
            SpecError: it has not written that.
        """
        fields = Fields.of(found, where)
        return cls(
            asked=_text(fields, "asked"),
            plan=_plan(fields, "plan"),
            since=_number(fields, "since", 0, _LATEST),
            left=_plan(fields, "left"),
            doublings=fields.number_or("doublings", 0, 0, MOST_DOUBLINGS),
            trial=_trial(fields),
            candidate=_text(fields, "candidate"),
            candidate_since=_number(fields, "candidateSince", 0, _LATEST),
            reason=_text(fields, "reason"),
            evidence=_text(fields, "evidence"),
        )


def _told(plan: Plan | None) -> list[Any] | None:
    return None if plan is None else [plan.mode, plan.density_permille, plan.local_steps]


def _plan(fields: Fields, name: str) -> Plan | None:
    if not fields.has(name):
        return None
    found = fields.items(name, 3)
    if len(found) != 3:
        raise fields.error(name, "must be a mode, a density and steps")
    told = Fields(dict(zip(("mode", "density", "steps"), found, strict=True)), fields.at(name))
    mode = told.word("mode", MODES)
    if mode is None:
        raise told.missing("mode", "how ranks train")
    density, steps = told.number("density", 1, MAX_DENSITY), told.number("steps", 1, MAX_LOCAL_STEPS)
    return Plan(mode, density, steps)


def _trial(fields: Fields) -> Trial | None:
    if not fields.has("trial"):
        return None
    found = fields.items("trial", 3)
    if len(found) != 3:
        raise fields.error("trial", "must be three numbers")
    told = Fields(dict(zip(("seconds", "expected", "least"), found, strict=True)), fields.at("trial"))
    return Trial(*(_number(told, name, -_LATEST, _LATEST) for name in ("seconds", "expected", "least")))


def _number(fields: Fields, name: str, least: float, most: float) -> float:
    found = fields.values.get(name, 0.0)
    if type(found) not in (int, float) or not least <= found <= most:
        raise SpecError(fields.at(name), f"must be a number from {least:g} to {most:g}")
    return float(found)


def _text(fields: Fields, name: str) -> str:
    found = fields.values.get(name, "")
    if not isinstance(found, str) or len(found) > _LONGEST:
        raise SpecError(fields.at(name), f"must be a text of at most {_LONGEST} characters")
    return one_line(found)

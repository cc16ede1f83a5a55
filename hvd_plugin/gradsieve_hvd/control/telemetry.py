"""What ranks measure, as it reaches the coordinator: validated records without behaviour.

Rank 0 reports what the whole job does. What a rank itself does is reported by the agent of its own host,
which can speak for no other one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from gradsieve_hvd.control.fields import Fields
from gradsieve_hvd.control.messages import MOST_GENERATION, MOST_RANKS, generation_field, host_field

_MOST_MODES, _LONGEST_MODE = 16, 32
_MOST_DENSITIES = 32


@dataclass(frozen=True)
class RankTelemetry:
    """One rank's times per step.

    Attributes:
        rank: its number.
        host: its host's name.
        step_seconds: what its own work takes.
        wait_seconds: what it waits for others; None if it does not say.
        equal_share_seconds: what its own work would take with an equal share of the batch; None if it has
            that.
        throttled_share: of the periods in which its container's CPU limit was used up; None if it does not
            say.
        generation: of the job when the rank was started.
        plan: generation of the plan that it followed; 0 for none.
        step: after which it was measured, on all ranks alike; None where each steps at its own pace.
    """

    rank: int
    host: str
    step_seconds: float
    wait_seconds: float | None = None
    equal_share_seconds: float | None = None
    throttled_share: float | None = None
    generation: int = 0
    plan: int = 0
    step: int | None = None

    @classmethod
    def read(cls, fields: Fields, host: str) -> RankTelemetry:
        """The times in ``fields``, of a rank on ``host``.

        Raises:
            Refused: a field does not fit.
        """
        return cls(
            fields.integer("rank", 0, MOST_RANKS),
            host,
            fields.number("stepSeconds"),
            fields.number("waitSeconds") if "waitSeconds" in fields else None,
            fields.number("equalShareSeconds") if "equalShareSeconds" in fields else None,
            min(fields.number("throttledShare"), 1.0) if "throttledShare" in fields else None,
            generation_field(fields) if "generation" in fields else 0,
            _count(fields, "appliedPlanGeneration") or 0,
            _count(fields, "measuredStep"),
        )

    def to_json(self) -> dict[str, object]:
        """The times, as people and the operator get to see them."""
        waits = {} if self.wait_seconds is None else {"waitSeconds": self.wait_seconds}
        equal = self.equal_share_seconds
        share = {} if equal is None else {"equalShareSeconds": equal}
        throttled = {} if self.throttled_share is None else {"throttledShare": self.throttled_share}
        times = {"stepSeconds": self.step_seconds, **waits, **share, **throttled}
        return {"rank": self.rank, "host": self.host, **times}


def read_report(fields: Fields, host: str) -> tuple[RankTelemetry, ...]:
    """The ranks of ``host`` in a report of its agent.

    Raises:
        Refused: a field does not fit.
    """
    return tuple(RankTelemetry.read(rank, host) for rank in fields.objects("ranks", MOST_RANKS, least=1))


@dataclass(frozen=True)
class OtherDensity:
    """What a rank would receive at another density.

    Attributes:
        factor: to the present density; 1 for that itself.
        received_bytes: in a step.
    """

    factor: float
    received_bytes: float

    @classmethod
    def read(cls, fields: Fields) -> OtherDensity:
        """The density in ``fields``.

        Raises:
            Refused: a field does not fit.
        """
        return cls(fields.number("factor", 1e-6, 1e6), fields.number("receivedBytesPerStep"))


@dataclass(frozen=True)
class Telemetry:
    """What rank 0 reports every few seconds; the names are those of the JSON fields.

    Attributes:
        generation: of the job, as in the reporting rank's ``GRADSIEVE_JOB_GENERATION``.
        step: number of the last finished step.
        numbers: JSON name -> value, of the fields that are plain numbers.
        ranks: every rank's times. Rank 0 of an earlier version names all of them itself.
        mode: in which they train; empty if the program does not say.
        modes: that the program can change to while it runs, the present one among them; empty for none.
        measured_step: after which all ranks have measured what the sample tells; None where each steps at its
            own pace.
        others: other densities, by ascending factor.
    """

    generation: int
    step: int
    numbers: dict[str, float]
    ranks: tuple[RankTelemetry, ...] = ()
    mode: str = ""
    modes: tuple[str, ...] = ()
    measured_step: int | None = None
    others: tuple[OtherDensity, ...] = ()

    @property
    def plan(self) -> int:
        """Generation of the plan that all ranks followed; 0 for none."""
        return int(self.numbers.get("appliedPlanGeneration", 0))

    @classmethod
    def read(cls, fields: Fields) -> Telemetry:
        """The sample in ``fields``.

        Raises:
            Refused: a field is missing, no finite number, or negative.
        """
        numbers = {name: fields.number(name) for name in ("stepSeconds", "waitSeconds", "time")}
        optional = (
            "selectSeconds",
            "wireBytesPerStep",
            "receivedBytesPerStep",
            "startUpSeconds",
            "bytesPerSecond",
            "denseBytesPerStep",
            "densityPermille",
            "appliedPlanGeneration",
            "committedStep",
        )
        for name in optional:
            if name in fields:
                numbers[name] = fields.number(name)
        if "loss" in fields:
            numbers["loss"] = fields.number("loss", -1e18)
        generation, plan = generation_field(fields), int(numbers.get("appliedPlanGeneration", 0))
        ranks = fields.objects("ranks", MOST_RANKS) if "ranks" in fields else []
        return cls(
            generation,
            fields.integer("step", 0, MOST_GENERATION),
            numbers,
            tuple(
                replace(RankTelemetry.read(rank, host_field(rank)), generation=generation, plan=plan)
                for rank in ranks
            ),
            fields.text("mode", most=_LONGEST_MODE) if "mode" in fields else "",
            _modes(fields),
            _count(fields, "measuredStep"),
            _others(fields),
        )

    def to_json(self) -> dict[str, object]:
        """The sample as it was sent."""
        ranks = [rank.to_json() for rank in self.ranks]
        whole = {name: int(value) if value.is_integer() else value for name, value in self.numbers.items()}
        modes = {"mode": self.mode, "modes": list(self.modes)} if self.modes else {}
        return {"generation": self.generation, "step": self.step, **whole, **modes, "ranks": ranks}


def _count(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 0, MOST_GENERATION) if name in fields else None


def _others(fields: Fields) -> tuple[OtherDensity, ...]:
    found = fields.objects("otherDensities", _MOST_DENSITIES) if "otherDensities" in fields else []
    others = tuple(map(OtherDensity.read, found))
    if any(low.factor >= high.factor for low, high in pairwise(others)):
        fields.refuse("otherDensities", "densities by ascending factor")
    return others


def _modes(fields: Fields) -> tuple[str, ...]:
    modes = fields.texts("modes", _MOST_MODES) if "modes" in fields else ()
    if not all(0 < len(mode) <= _LONGEST_MODE for mode in modes):
        fields.refuse("modes", f"names of 1 to {_LONGEST_MODE} characters")
    return modes

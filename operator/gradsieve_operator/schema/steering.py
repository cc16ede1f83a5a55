"""The schema of parallelism and adaptation: in CompressionPolicy and in HorovodJob."""

from __future__ import annotations

from gradsieve_operator.schema.parts import Schema, fields, flag, listed, number, rules, word
from gradsieve_operator.spec.values import (
    BOUNDED_MODES,
    MAX_HYSTERESIS,
    MAX_INTERVAL,
    MAX_LOCAL_STEPS,
    MAX_SAMPLES,
    MAX_SECONDS,
    MAX_STALENESS,
    MIN_INTERVAL,
    MIN_SAMPLES,
    MODES,
)


def steering() -> dict[str, Schema]:
    """Return the schemas of both fields."""
    return {"parallelism": _parallelism(), "adaptation": _adaptation()}


def _parallelism() -> Schema:
    return fields(
        "When gradients become weights. Under a mode that their program cannot change to, ranks train "
        "synchronously: condition AdaptationHeld, reason ProgramCannot.",
        {
            "mode": word(
                "Auto: the operator chooses by what it measures, if adaptation is enabled. Left out: "
                "Synchronous.",
                MODES,
            ),
            "stalenessBound": number(
                "Iterations that a worker may lead the slowest, in the bounded modes.", 1, MAX_STALENESS
            ),
            "localSteps": number("Steps between two exchanges, in mode Local.", 1, MAX_LOCAL_STEPS),
        },
        **rules(
            (
                f"!has(self.stalenessBound) || (has(self.mode) && self.mode in {listed(BOUNDED_MODES)})",
                "stalenessBound is for modes BoundedStaleness and DynamicBoundedStaleness: remove it",
            ),
            (
                "!has(self.localSteps) || (has(self.mode) && self.mode == 'Local')",
                "localSteps is for mode Local: remove it",
            ),
        ),
    )


def _adaptation() -> Schema:
    return fields(
        "Whether the operator changes the plan by what it measures, and how carefully.",
        {
            "enabled": flag("Whether it does. Left out: no."),
            "intervalSeconds": number(
                "For how long a change must look worth it before it is made. Left out: 30.",
                MIN_INTERVAL,
                MAX_INTERVAL,
            ),
            "cooldownSeconds": number(
                "From one change to the next at the earliest; doubled each time that a change is undone. "
                "Left out: 120.",
                MIN_INTERVAL,
                MAX_SECONDS,
            ),
            "hysteresisPercent": number(
                "How much sooner a loss must be reached to be worth a change. Left out: 10.",
                1,
                MAX_HYSTERESIS,
            ),
            "minSamples": number(
                "Samples of the present plan before anything is concluded; one comes every two seconds. "
                "Left out: 10.",
                MIN_SAMPLES,
                MAX_SAMPLES,
            ),
        },
    )

"""A step of which some exchanging is hidden behind backward: when the last bucket has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .costs import Cost

FORWARD_SHARE = 1 / 3
"""Of computing, before the first gradient **(r)**: backward takes about twice as long as forward."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """seconds: of a step. work_seconds: selecting, encoding, decoding, adding. exposed_seconds: waiting."""

    seconds: float
    work_seconds: float
    exposed_seconds: float


def step_time(compute_seconds: float, buckets: Sequence[Cost]) -> StepTime:
    """Return how long a step takes in which buckets leave while backward goes on.

    1. Gradients become ready at a steady pace after ``FORWARD_SHARE`` of computing; every bucket's work is
       done when it is ready, and delays what is computed after it.
    2. Buckets travel one after another, in their order. Moving them slows computing as long as both go on.
    3. The step is over when all has arrived and computing has ended.

    compute_seconds: of a step without any exchange.
    """
    clock = compute_seconds * FORWARD_SHARE
    backward = compute_seconds - clock
    travelling = sum(bucket.travel_seconds for bucket in buckets)
    moving = sum(bucket.move_seconds for bucket in buckets)
    moving *= min(backward / travelling, 1.0) if travelling else 0.0
    pace = (backward + moving) / max(len(buckets), 1)
    link_is_free = 0.0
    for bucket in buckets:
        clock += pace + bucket.work_seconds
        link_is_free = max(clock, link_is_free) + bucket.travel_seconds
    computed = compute_seconds + moving + sum(bucket.work_seconds for bucket in buckets)
    exposed = max(link_is_free - computed, 0.0)
    return StepTime(computed + exposed, computed - compute_seconds, exposed)

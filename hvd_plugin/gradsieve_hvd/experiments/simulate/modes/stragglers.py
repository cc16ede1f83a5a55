"""How long workers compute and how long messages travel: played, the same for every mode of a seed.

The unit of time is what a nominal batch takes on a nominal worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

_SPELL = 15.0
_SPELLS = 10_000
_SPEEDS = (1, 1, 2, 4)  # of GPUs
_SPARSE_ENTRY = 1.5  # an index and a value against a value
_SCATTER = 0.05

Factor = Callable[[int, int, float, np.random.Generator], float]
"""Slowness by rank, number of workers, time, and randomness of this rank's iteration."""
Noise = Callable[[int, np.random.Generator], float]
"""What a batch takes against usual ones, by rank and randomness of this rank's iteration."""


def _nothing(rank: int) -> float:  # noqa: ARG001
    return 0.0


def _scattering(rank: int, random: np.random.Generator) -> float:  # noqa: ARG001
    return float(np.exp(_SCATTER * random.standard_normal()))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster.

    factor: slowness of computing. slow_link: time that a dense message to or from the last rank takes.
    server_link: time that a dense message occupies the server's link, in one direction. answer: by rank, time
    that a push and its answer take beyond that, half of it each way: to encode, apply and take over.
    noise: of every batch's duration. together: whether workers' batches of the same number draw alike.
    """

    says: str
    factor: Factor
    slow_link: float = 0.0
    server_link: float = 0.0
    answer: Callable[[int], float] = _nothing
    noise: Noise = _scattering
    together: bool = False


def _even(rank: int, workers: int, time: float, random: np.random.Generator) -> float:  # noqa: ARG001
    return 1.0


def _last(slowness: float) -> Factor:
    def factor(rank: int, workers: int, time: float, random: np.random.Generator) -> float:  # noqa: ARG001
        return slowness if rank == workers - 1 else 1.0

    return factor


def _transient(rank: int, workers: int, time: float, random: np.random.Generator) -> float:  # noqa: ARG001
    return 3.0 if random.random() < 0.2 else 1.0


def _mixed(rank: int, workers: int, time: float, random: np.random.Generator) -> float:  # noqa: ARG001
    return float(np.mean(_SPEEDS)) / _SPEEDS[rank % len(_SPEEDS)]


def _wandering(rank: int, workers: int, time: float, random: np.random.Generator) -> float:  # noqa: ARG001
    # Who is slow in a spell is a property of the spell: the same for all; seeds start elsewhere.
    spell = int(time / _SPELL) % _SPELLS
    return 4.0 if np.random.default_rng(spell).integers(workers) == rank else 1.0


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "even": Scenario("all alike", _even),
        "slow2": Scenario("one worker needs twice as long", _last(2.0)),
        "slow4": Scenario("one worker needs four times as long", _last(4.0)),
        "wander": Scenario("one worker at a time needs four times as long, for 15 units", _wandering),
        "transient": Scenario("a fifth of all iterations takes three times as long", _transient),
        "mixed": Scenario("GPUs of speeds 1:1:2:4", _mixed),
        "link": Scenario("a dense message to or from one worker takes one unit", _even, slow_link=1.0),
        "server": Scenario("a dense message occupies the server's link for 0.15", _even, server_link=0.15),
    }
)


def as_measured(
    batches: Sequence[float], answers: Sequence[float], ratios: Sequence[Sequence[float]], *, together: bool
) -> Scenario:
    """Return a cluster of workers that need, by rank, so long for a batch, and for a push and its answer.

    ratios: by rank, what single batches took against its usual one; each is as likely for every batch.
    together: workers' batches of the same number take what they did in one step of all.
    """
    return Scenario(
        "workers as they were measured",
        lambda rank, workers, time, random: batches[rank],  # noqa: ARG005 - as all factors
        answer=lambda rank: answers[rank],
        noise=lambda rank, random: ratios[rank][int(random.integers(len(ratios[rank])))],
        together=together,
    )


class Delays:
    """Draws one run's delays.

    Args:
        density: of pushes; replies travel dense.
    """

    def __init__(self, scenario: Scenario, workers: int, seed: int, density: float) -> None:
        self._scenario, self._workers = scenario, workers
        self._push_size = min(_SPARSE_ENTRY * density, 1.0)
        drawing = [0 if scenario.together else rank for rank in range(workers)]
        self._random = [np.random.default_rng((seed, each, 1)) for each in drawing]
        self._shift = float(np.random.default_rng((seed, 2)).uniform(0, _SPELL * _SPELLS))
        self._inbound = self._outbound = 0.0

    def computing(self, rank: int, time: float, share: float) -> float:
        """Return the seconds of a batch that begins now."""
        random = self._random[rank]
        noise = self._scenario.noise(rank, random)
        return share * noise * self._scenario.factor(rank, self._workers, time + self._shift, random)

    def push_arrival(self, rank: int, time: float) -> float:
        """Return when a push that is ready now has arrived; calls in the order of time."""
        sent = time + self._push_size * self._link(rank) + self._scenario.answer(rank) / 2
        if not self._scenario.server_link:
            return sent
        self._inbound = max(self._inbound, sent) + self._push_size * self._scenario.server_link
        return self._inbound

    def reply_arrival(self, rank: int, time: float) -> float:
        """Return when weights that are sent now have arrived; calls in the order of time."""
        if self._scenario.server_link:
            time = self._outbound = max(self._outbound, time) + self._scenario.server_link
        return self.answer_arrival(rank, time) + self._link(rank)

    def answer_arrival(self, rank: int, time: float) -> float:
        """Return when a few bytes that are sent now have arrived."""
        return time + self._scenario.answer(rank) / 2

    def _link(self, rank: int) -> float:
        return self._scenario.slow_link if rank == self._workers - 1 else 0.0

"""What choosing a path costs, on machines that are not steady: the choice alone, with steps that are drawn.

::

    python benchmarks/choosing_paths.py

Each line is a machine and what paths take there: how much longer steps took than by the best path, in the
first 350, in which paths are tried, and in the 700 after them.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Mapping

from gradsieve_hvd.choice.path_choice import PathChoice

FIRST, STEPS = 350, 1050
PREDICTED = {"allgather": 1.0, "ring": 1.08, "scatter": 1.02}
TAKEN: Mapping[str, tuple[dict[str, float], dict[str, float]]] = {
    "ring 48, scatter 15 % slower": (
        {"allgather": 1.0, "ring": 1.22, "scatter": 1.02},
        {"allgather": 1.0, "ring": 1.48, "scatter": 1.15},
    ),
    "ring 8, scatter 3 % slower": (PREDICTED, {"allgather": 1.0, "ring": 1.08, "scatter": 1.03}),
    "scatter 3 % faster": (PREDICTED, {"allgather": 1.0, "ring": 1.08, "scatter": 0.97}),
    "scatter 6 % faster": (PREDICTED, {"allgather": 1.0, "ring": 1.08, "scatter": 0.94}),
    "scatter 10 % faster": (PREDICTED, {"allgather": 1.0, "ring": 1.08, "scatter": 0.90}),
}
"""What is predicted of each path, and what its steps take; "allgather" is what a training begins with."""


def scattering(deviation: float) -> Callable[[random.Random], Iterator[float]]:
    """Steps scatter, one like the other."""

    def draw(dice: random.Random) -> Iterator[float]:
        while True:
            yield dice.gauss(1, deviation)

    return draw


def disturbed(
    levels: list[float], steps: float, deviation: float
) -> Callable[[random.Random], Iterator[float]]:
    """Steps scatter, and for so many of them in the mean all take one of several times as long."""

    def draw(dice: random.Random) -> Iterator[float]:
        while True:
            level = dice.choice(levels)
            for _ in range(1 + round(dice.expovariate(1 / steps))):
                yield level * dice.gauss(1, deviation)

    return draw


MACHINES = {
    "steps scatter by 1 %": scattering(0.01),
    "by 6 %": scattering(0.06),
    "by 10 %": scattering(0.10),
    "by 5 %, up to 30 % slower for 8 steps": disturbed([1.0, 1.0, 1.05, 1.15, 1.3], 8, 0.05),
    "by 3 %, 25 % slower in a quarter, for 40 steps": disturbed([1.0, 1.0, 1.0, 1.25], 40, 0.03),
}


def lost(
    machine: Callable[[random.Random], Iterator[float]],
    predicted: Mapping[str, float],
    taken: Mapping[str, float],
    seed: int,
) -> tuple[float, float]:
    """Return how much longer steps took than by the best path: the first ones, and the others."""
    choice, best = PathChoice("allgather"), min(taken.values())
    took, least = [0.0, 0.0], [0.0, 0.0]
    for step, slowness in zip(range(STEPS), machine(random.Random(seed)), strict=False):
        seconds, later = slowness * taken[choice.path], step >= FIRST
        took[later] += seconds
        least[later] += slowness * best
        choice.decide(predicted, seconds)
    return took[0] / least[0] - 1, took[1] / least[1] - 1


def main() -> None:
    """Print a line for each machine and kind of paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", type=int, default=60)
    trainings = parser.parse_args().trainings
    for name, machine in MACHINES.items():
        print(name)
        for paths, (predicted, taken) in TAKEN.items():
            early, late = zip(
                *(lost(machine, predicted, taken, seed) for seed in range(trainings)), strict=True
            )
            first, then = statistics.mean(early), statistics.mean(late)
            ninth = sorted(late)[round(0.9 * (trainings - 1))]
            told = f"then {then:5.2%}, one in ten above {ninth:5.2%}, at most {max(late):5.2%}"
            print(f"  {paths:30} first {FIRST} steps {first:5.2%}, {told}")


if __name__ == "__main__":
    main()

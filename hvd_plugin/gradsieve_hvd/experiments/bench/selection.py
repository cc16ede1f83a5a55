"""Times of selecting, contenders taking turns on the same gradients."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .contenders import Contender, Ours, contenders
from .memory import PeakMemory, floor_seconds
from .recording import Recording

Row = dict[str, Any]
_WARM_UP_ROUNDS = 6  # residuals fill, thresholds settle
_RECORDED_STEPS = 24
_MEMORY_STEPS = 3
_REST_SECONDS = 0.02  # torch's threads spin for milliseconds after a pass, on cores that the next one needs


class Gradients(Protocol):
    """Where gradients come from."""

    def gradient(self, step: int, elements: int) -> Tensor:
        """Return the gradient of a step, fp32 [elements]."""


class Noise:
    """Normal noise, as most published benchmarks use it: easier than gradients, whose tails are heavier."""

    def gradient(self, step: int, elements: int) -> Tensor:
        """Return the gradient of a step."""
        return torch.randn(elements, generator=torch.Generator().manual_seed(step))


SOURCES: dict[str, Callable[[], Gradients]] = {
    "recorded": lambda: Recording(_RECORDED_STEPS),
    "normal": Noise,
}


@dataclass
class _Entrant:
    contender: Contender | Ours
    seconds: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    energy: float = 0.0


def measure(
    source: Gradients,
    elements: int,
    density: float,
    rounds: int,
    progress: Callable[[str], None],
    names: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield a row per contender, after ``rounds`` rounds in which each takes a step on the same gradient;
    all contenders unless ``names`` chooses.

    Every contender has a residual of its own, so that it selects from accumulated gradients;
    ``fresh_seconds`` is its very first step. Passes use torch's number
    of threads.
    """
    factories = contenders(elements, density)
    if names is not None:
        factories = {name: factories[name] for name in names}
    entrants = {name: _Entrant(factory()) for name, factory in factories.items()}
    numbers = torch.zeros(elements)
    floor: list[float] = []
    for number in range(_WARM_UP_ROUNDS + rounds):
        progress(f"round {number + 1} of {_WARM_UP_ROUNDS + rounds}")
        gradient = source.gradient(number, elements)
        for entrant in entrants.values():
            floor.append(floor_seconds(numbers))
            time.sleep(_REST_SECONDS)
            _take_turn(entrant, gradient, last=number == _WARM_UP_ROUNDS + rounds - 1)
    count = max(1, round(density * elements))
    for name, entrant in entrants.items():
        progress(f"memory of {name}")
        yield {
            "method": name,
            "kernel": entrant.contender.kernel,
            "seconds": min(entrant.seconds[_WARM_UP_ROUNDS:]),
            "median_seconds": statistics.median(entrant.seconds[_WARM_UP_ROUNDS:]),
            "fresh_seconds": entrant.seconds[0],
            "floor_seconds": min(floor),
            "kept_ratio": statistics.median(entrant.kept[_WARM_UP_ROUNDS:]) / count,
            "relative_energy": entrant.energy,
            "extra_bytes": _extra_bytes(factories[name], source, elements),
        }


def _take_turn(entrant: _Entrant, gradient: Tensor, *, last: bool) -> None:
    begin = time.perf_counter()
    result = entrant.contender.step(gradient)
    entrant.seconds.append(time.perf_counter() - begin)
    sent = entrant.contender.sent(result)
    entrant.kept.append(sent.numel())
    if last:
        energy_sent = float(sent.double().square().sum())
        entrant.energy = energy_sent / (energy_sent + float(entrant.contender.rest().double().square().sum()))


def _extra_bytes(factory: Callable[[], Contender | Ours], source: Gradients, elements: int) -> int:
    """Return the most that a contender needs beside the gradient and one fp32 residual, kept or for a while.

    In a thread of its own, so that it brings its own scratch memory.
    """
    gradients = [source.gradient(step, elements) for step in range(_MEMORY_STEPS)]
    grown = 0

    def run() -> None:
        nonlocal grown
        peak = PeakMemory()
        contender = factory()
        for gradient in gradients:
            contender.step(gradient)
        grown = peak.grown()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return max(0, grown - 4 * elements)

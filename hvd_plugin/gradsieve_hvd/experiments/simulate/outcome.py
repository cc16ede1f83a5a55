"""One simulated training from its first to its last step: what it came to, what it sent, what it kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from gradsieve import CompressionConfig
from gradsieve_hvd.experiments.tasks import Task

from .training import Step, training
from .watch import LayerWatch


@dataclass(frozen=True, slots=True)
class Point:
    """The metric on held-out data after some steps, and the bytes that a rank has sent until then."""

    steps: int
    sent_bytes: float
    value: float


@dataclass(slots=True)
class Outcome:
    """What a training came to.

    curve: evaluations, the last one at the end. sent_bytes: of a rank, mean over the ranks, all steps;
    payload_bytes: those of compressed tensors among them. layers: a watch per compressed layer; none if
    everything was sent.
    """

    curve: list[Point] = field(default_factory=list)
    sent_bytes: float = 0.0
    payload_bytes: float = 0.0
    layers: dict[str, LayerWatch] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The metric at the end."""
        return self.curve[-1].value


def train(
    task: Task,
    config: CompressionConfig | None,
    *,
    ranks: int,
    steps: int,
    seed: int,
    evaluate_steps: int,
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Train and return what it came to, evaluating every ``evaluate_steps`` steps and at the end; by the
    task's own optimizer unless one is given.
    """
    outcome = Outcome()
    taken = training(task, config, ranks=ranks, steps=steps, seed=seed, optimizer=optimizer)
    for step in taken:
        done = step.number + 1
        outcome.sent_bytes += step.sent_bytes
        outcome.payload_bytes += step.payload_bytes
        if config is not None:
            _watch(outcome.layers, config, step)
        if done % evaluate_steps == 0 or done == steps:
            outcome.curve.append(Point(done, outcome.sent_bytes, task.evaluate(step.model)))
            progress(f"step {done} of {steps}, {task.metric} {outcome.value:.4f}")
    return outcome


def _watch(layers: dict[str, LayerWatch], config: CompressionConfig, step: Step) -> None:
    for rank in step.ranks:
        for name, compressor in rank.layers.items():
            if name not in layers:
                layers[name] = LayerWatch(name, step.model.get_parameter(name).numel())
            layers[name].observe(config, compressor)

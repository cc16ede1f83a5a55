"""One training of a rank of ``gradsieve bench modes``, and what it tells."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gradsieve_hvd
from gradsieve.errors import NonFiniteGradient
from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.peers.ranks import Ranks
from gradsieve_hvd.experiments.peers.train_worker import set_rate
from gradsieve_hvd.experiments.tasks import DealtTask
from gradsieve_hvd.optimizer.served import SERVED

from .contenders import CONTENDERS, LOCAL_STEPS
from .plan import ModesPlan, conditions
from .steps import Steps, exchanges
from .target import seconds_to_target

_TOGETHER = 10
"""Steps from one agreement on whether time is up to the next, where ranks step together; of mode "local" a
round's.
"""


class RankTraining:
    """One contender's training on this rank."""

    def __init__(self, plan: ModesPlan, ranks: Ranks, task: DealtTask, name: str, seed: int) -> None:
        self._plan, self._ranks, self._task, self._name, self._seed = plan, ranks, task, name, seed
        self._contender = CONTENDERS[name]
        self._mode = self._contender.mode
        self._model = task.model(seed)
        self._sizes: list[int] = []
        self._computing: list[float] = []
        self._stepping: list[float] = []
        self._held: list[float] = []  # of stepping, what the mode had this rank wait for others
        self._overtime = 0.0
        self._copies: list[tuple[float, list[Tensor]]] = [(0.0, _copy(self._model))]
        self._together = LOCAL_STEPS if self._mode == "local" else _TOGETHER

    def run(self, rate: float, momentum: float) -> Row:
        """Train until time is up or gradients are not finite, and return the row, the same on all ranks."""
        plain = self._task.optimizer(self._model)
        set_rate(plain, rate)
        _set_momentum(plain, momentum)
        optimizer = self._distributed(plain)
        self._ranks.begin_turn()
        diverged = False
        try:
            self._train(optimizer)
        except NonFiniteGradient:
            diverged = True
        turn = self._ranks.end_turn()
        if self._mode in SERVED and not diverged:
            # At once, so that nobody waits for a push of this rank.
            diverged = not _finishes(optimizer)
        turns = self._ranks.gather(turn)
        curve = self._ranks.gather(self._curve() if self._ranks.rank == 0 else None)[0]
        rising = self._task.metric == "accuracy"
        return conditions(self._plan, self._ranks.size) | {
            "mode": self._name,
            "metric": self._task.metric,
            "seed": self._seed,
            "learning_rate": rate,
            "momentum": momentum,
            "diverged": any(self._ranks.gather(diverged)),
            "seconds_to_target": seconds_to_target(curve, self._plan.until, rising=rising),
            **self._times(),
            **self._served(optimizer),
            "sent_bytes": [each.sent_bytes for each in turns],
            "received_bytes": [each.received_bytes for each in turns],
            "curve": curve,
        }

    def exchanges(self) -> Row:
        """What steps took beside computing and waiting for others, and batches; see `exchanges`."""
        ranks = self._ranks.gather(Steps(self._sizes, self._computing, self._stepping, self._held))
        return exchanges(ranks, self._plan.batch, together=self._mode not in SERVED)

    def _train(self, optimizer: Any) -> None:
        losses = self._losses(optimizer)
        held = 0.0
        began = last = time.perf_counter()
        while not self._is_over(last - began):
            last = time.perf_counter()  # to agree on the end is no part of a batch
            optimizer.zero_grad()
            next(losses).backward()
            computed = time.perf_counter()
            optimizer.step()
            self._computing.append(computed - last)
            last = time.perf_counter()
            self._stepping.append(last - computed)
            self._held.append(optimizer.stats().held_seconds - held if self._mode in SERVED else 0.0)
            held += self._held[-1]
            self._keep(last - began)
        self._overtime = max(last - began - self._plan.budget_seconds, 0.0)

    def _distributed(self, plain: Optimizer) -> Any:
        own: dict[str, Any] = {"mode": self._mode, **self._contender.settings}
        if self._mode != "local" and self._plan.density == 1:  # local has its own
            own["exchange"] = "dense"
        elif self._mode != "local":
            own["compression"] = gradsieve_hvd.Compression.laplace(density=self._plan.density)
        if self._mode in SERVED:
            own["server_ranks"] = self._plan.server_ranks
        return gradsieve_hvd.DistributedOptimizer(plain, self._model.named_parameters(), **own)

    def _losses(self, optimizer: Any) -> Iterator[Tensor]:
        """Yield the loss of one batch after another, dealt as the mode does it."""
        sampler = gradsieve_hvd.DynamicSampler(
            range(self._task.samples), optimizer, self._plan.batch, seed=self._seed
        )
        for epoch in count():
            sampler.set_epoch(epoch)
            for samples in sampler:
                self._sizes.append(len(samples))
                yield self._task.loss_on(self._model, samples)

    def _is_over(self, seconds: float) -> bool:
        """Whether time is up: by a rank's own clock where it steps by itself, else by rank 0's, for all."""
        if self._mode in SERVED:
            return seconds >= self._plan.budget_seconds
        if len(self._computing) % self._together:
            return False
        return bool(self._ranks.gather(seconds)[0] >= self._plan.budget_seconds)

    def _keep(self, seconds: float) -> None:
        """Copy rank 0's weights, if it is time: between local steps they are not the common ones."""
        in_a_round = self._mode == "local" and len(self._computing) % LOCAL_STEPS
        is_time = seconds >= self._copies[-1][0] + self._plan.judge_seconds
        if self._ranks.rank == 0 and is_time and not in_a_round:
            self._copies.append((seconds, _copy(self._model)))

    def _curve(self) -> list[tuple[float, float]]:
        """Judge what was kept; no training waits for it."""
        judged = []
        for seconds, weights in self._copies:
            with torch.no_grad():
                for parameter, value in zip(self._model.parameters(), weights, strict=True):
                    parameter.copy_(value)
            judged.append((seconds, self._task.evaluate(self._model)))
        return judged

    def _times(self) -> Row:
        """What every rank's steps took; the first brought the optimizers to speak to each other."""
        every = self._ranks.gather((self._computing[1:], self._stepping[1:]))
        over = self._overtime if self._mode in SERVED else 0.0
        waiting = self._ranks.gather(waiting_share(self._computing[1:], self._stepping[1:], over))
        sizes = self._ranks.gather(self._sizes)
        return {
            "steps": [len(computing) + 1 for computing, _ in every],
            "samples": list(map(sum, sizes)),
            "late_batch": list(map(_late, self._whole(sizes))),
            "late_computing_seconds": [_late(computing) for computing, _ in every],
            "computing_seconds": [statistics.mean(computing or [0.0]) for computing, _ in every],
            "late_step_seconds": [_late(list(map(sum, zip(*each, strict=True)))) for each in every],
            "waiting_share": statistics.mean(waiting),
        }

    def _whole(self, sizes: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Return every rank's batches of steps with as many samples as usual, where ranks step together: the
        last ones of epochs are smaller, and would move a median between two shares.
        """
        if self._mode in SERVED:
            return sizes
        usual = self._plan.batch * self._ranks.size
        steps = [step for step in zip(*sizes, strict=True) if sum(step) == usual]
        return [*zip(*steps, strict=True)] or sizes

    def _served(self, optimizer: Any) -> Row:
        """What only a parameter server knows."""
        if self._mode not in SERVED:
            return {"version": None, "staleness": None, "pushed_bytes": None, "reply_bytes": None}
        counters = self._ranks.gather(optimizer.stats())
        missed, version = self._ranks.gather((optimizer.training.missed, optimizer.version))[0]
        return {
            "version": version,
            "staleness": sorted(missed.items()),
            "pushed_bytes": [each.pushed_bytes for each in counters],
            "reply_bytes": [each.reply_bytes for each in counters],
        }


def waiting_share(computing: Sequence[float], stepping: Sequence[float], over: float) -> float:
    """Return what a rank waited for, of the seconds of its steps.

    over: seconds after time was up, in which it was in its last step: they do not count.
    """
    waiting = sum(stepping)
    counted = sum(computing) + waiting - over
    late = min(over, stepping[-1]) if stepping else 0.0
    return (waiting - late) / counted if counted > 0 else 0.0


def _late(of_steps: Sequence[float]) -> float:
    """Return the median of the second half: when shares of a batch have found their size."""
    return statistics.median(of_steps[len(of_steps) // 2 :] or [0.0])


def _finishes(optimizer: Any) -> bool:
    """Whether training ends well: others may still train, to gradients that are not finite."""
    try:
        optimizer.finish()
    except NonFiniteGradient:
        return False
    return True


def _set_momentum(plain: Optimizer, momentum: float) -> None:
    for group in plain.param_groups:
        group["momentum"], group["nesterov"] = momentum, group["nesterov"] and momentum > 0


def _copy(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]

"""Steps that a parameter server makes, in a training that goes on in other modes before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from gradsieve.errors import RankMismatch
from gradsieve_hvd.control.reporter_clock import StepTimes
from gradsieve_hvd.engine.pace import Pace
from gradsieve_hvd.optimizer.sampling import ServedBatches
from gradsieve_hvd.optimizer.served.counters import ServedCounters
from gradsieve_hvd.optimizer.served.gradients import ServedGradients
from gradsieve_hvd.optimizer.served.serving import DealtBefore, Serving
from gradsieve_hvd.optimizer.served.training import ServedTraining
from gradsieve_hvd.optimizer.synchronizer import Synchronizer
from gradsieve_hvd.server.sample_ledger import SampleLedger

SERVED_MODES = ("asp", "ssp", "dssp", "dasp")
"""Those that a training may change to: "bsp" is a baseline to compare them with."""

_STEP = "a step"  # where ranks are that have stopped for a plan
_REPORT_SECONDS = 2.0


class ServedSteps:
    """Makes them, phase by phase: each begins with weights and a state of the optimizer that all ranks have
    in common, and ends with such.

    Args:
        optimizer: the user's own; its class makes the updates, on the shards.
        synchronizer: sums gradients in the other modes. What waits in its residuals goes on waiting there,
            and goes with the pushes.
        shards: the ranks that may keep weights.
        equal_batches: see `Serving`.

    training: of the present phase; None in modes without a server. dealt: batches that a sampler deals, in
    all phases since the last mode without a server. staleness_bound: of the present mode; None for the usual
    one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        synchronizer: Synchronizer,
        shards: Sequence[int],
        *,
        equal_batches: bool = False,
    ) -> None:
        self._optimizer, self._synchronizer, self._shards = optimizer, synchronizer, shards
        self._equal_batches = equal_batches
        self.training: ServedTraining | None = None
        self._mode, self._phases = "", 0
        self.dealt = self._nothing_dealt()
        self.staleness_bound: int | None = None
        self._reported: Pace | None = None
        self._told: tuple[float, ServedCounters] | None = None  # when, and this rank's steps until then
        self._asked = 0  # the last plan for which ranks were asked to stop

    def begin(self, mode: str, staleness_bound: int | None = None) -> None:
        """Begin a phase; in a mode without a server, none. Nobody is told before its first step."""
        self.training, self._reported, self._told, self._mode = None, None, None, mode
        self.staleness_bound = staleness_bound
        if mode not in SERVED_MODES:
            self.dealt = self._nothing_dealt()
            return
        self.dealt.batches.seen_before = self._synchronizer.batches.samples_seen or 0
        synchronizer, reducer = self._synchronizer, self._synchronizer.reducer
        named, step = sorted(synchronizer.named.items()), synchronizer.agreement.steps
        states = [reducer.state_of(name, parameter) for name, parameter in named if parameter.requires_grad]
        layers = {state.name: state.layer for state in states if state.layer is not None}

        def meet() -> None:
            synchronizer.meet()
            synchronizer.agreement.at_once(step, SERVED_MODES)

        self.training = ServedTraining(
            self._optimizer,
            ServedGradients(named, layers, reducer.policy),
            named,
            synchronizer.connection.transport,
            Serving(
                mode=mode,
                shards=self._shards,
                staleness_bound=staleness_bound,
                timeout=reducer.settings.timeout_seconds,
                equal_batches=self._equal_batches,
                gives_back=True,
                dealt=self.dealt,
            ),
            meet=meet,
            first_step=step,
        )

    def _nothing_dealt(self) -> DealtBefore:
        return DealtBefore(ServedBatches(), SampleLedger(self._synchronizer.batches.ranks))

    def restart(self) -> None:
        """Begin the present mode as in a new process, on all ranks together."""
        self._asked = 0
        self.dealt = self._nothing_dealt()
        self.begin(self._mode, self.staleness_bound)

    def after_step(self, optimizer: torch.optim.Optimizer, followed: int) -> bool:
        """1. Tell what this rank has done in some seconds, and on rank 0, report what all have.
        2. There, have all ranks stop if there is a plan after the one that they have ``followed``; once.
        3. If this rank is to stop, end the phase, and begin another one.

        Returns:
            whether that has been done, by all ranks for a plan.

        Raises:
            GradsieveError: see `end`.
        """
        training, agreement = self.training, self._synchronizer.agreement
        assert training is not None, "it has made the step"
        self._tell_own(training.counters)
        pace = training.pace()
        if pace is not None:
            self._report(pace, agreement.steps + training.counters.steps)
            newest = agreement.newest_generation
            if newest > max(followed, self._asked):
                self._asked = newest
                training.ask_all_to_leave()
        return training.asked_to_leave and self.end(optimizer, _STEP)

    def _tell_own(self, counters: ServedCounters) -> None:
        now = time.monotonic()
        if self._told is not None:
            since, before = self._told
            if now - since < _REPORT_SECONDS:
                return
            steps = counters.steps - before.steps
            waiting = (counters.waiting_seconds - before.waiting_seconds) / steps
            computing = (counters.computing_seconds - before.computing_seconds) / steps
            self._synchronizer.agreement.report_own(StepTimes(computing + waiting, waiting, 0.0, steps))
        self._told = now, replace(counters)

    def _report(self, pace: Pace, step: int) -> None:
        if self._reported is None:
            self._reported = pace
        elif pace.time - self._reported.time >= _REPORT_SECONDS and (done := pace.since(self._reported)):
            self._reported = pace
            self._synchronizer.agreement.report(step, done)

    def end(self, optimizer: torch.optim.Optimizer, where: str) -> bool:
        """Have the weights and the optimizer's state that a parameter server makes become those of all ranks,
        once all have come to some such place, and begin another phase. In modes without a server, nothing.

        1. Stop pushing, and serve until all ranks have.
        2. Tell each other how many steps that took, where they are, rank 0's plan, and which samples were
           used.
        3. Those that have stopped for a plan alone go on. Others wait, phase by phase, until all have come
           where they are.

        where: the call, for others.

        Returns:
            whether all ranks are in the same place.

        Raises:
            RankMismatch: on all ranks: they have come to different places, of which each is for all ranks.
            GradsieveError: see `ServedTraining.finish`.
        """
        while self.training is not None:
            self.training.finish(optimizer)
            places = self._tell(self.training.counters.steps, where)
            if self.dealt.batches.dealt:
                self._synchronizer.batches.set_samples_seen(self.training.samples_seen)
            self.begin(self._mode, self.staleness_bound)
            if len({*places} - {_STEP}) > 1:
                shown = ", ".join(f"rank {rank}: {place}" for rank, place in enumerate(places))
                raise RankMismatch(
                    f"ranks have stopped stepping at different places of the program ({shown}). All of them "
                    "make these calls in the same order"
                )
            if where == _STEP or len({*places}) == 1:
                return len({*places}) == 1
        return True

    def _tell(self, steps: int, where: str) -> list[str]:
        self._phases += 1
        agreement, messages = self._synchronizer.agreement, self._synchronizer.connection.messages
        dealt = self.dealt
        said = [steps, where, dealt.batches.open, dealt.ledger.state() if messages.rank == 0 else []]
        told = messages.tell(json.dumps(said).encode(), f"served.{self._phases}").wait()
        taken, places, amid, epochs = zip(*map(json.loads, told), strict=True)
        agreement.other_steps += max(taken)
        if dealt.batches.dealt:
            dealt.epochs = epochs[0]
        # Programs that have taken different numbers of steps may not go on in step: their own collectives,
        # and their evaluations, would come at different ones. So would batches that loaders have already.
        together = len({*places}) == 1 and where != _STEP and not any(amid)
        agreement.at_once(agreement.steps, None if together else SERVED_MODES)
        return list(places)

"""What all ranks do together when a training goes on in another mode."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gradsieve.errors import ConfigurationError, RankMismatch
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.statistics import StepStatistics
from gradsieve_hvd.optimizer.common_hyperparameters import common_if_stepped_apart
from gradsieve_hvd.optimizer.local.report import Report
from gradsieve_hvd.optimizer.local.rounds import LocalRounds
from gradsieve_hvd.optimizer.local.rules import LocalRules
from gradsieve_hvd.optimizer.sampling.sampler_state import Epochs
from gradsieve_hvd.optimizer.served.training import ServedTraining
from gradsieve_hvd.optimizer.synchronizer import Synchronizer

from .average_state import average_state
from .mode_agreement import ModeAgreement
from .served_steps import SERVED_MODES, ServedSteps

_log = logging.getLogger("gradsieve.optimizer")
_OF_GRADIENTS = ("synchronous", "balanced")


class ModeChanges:
    """The mode of a training, and its changes.

    Args:
        synchronizer: sums gradients in the modes "synchronous" and "balanced"; rests in mode "local".
        local_settings: what mode "local" sends, and how long ranks wait for each other.
        rules: of mode "local".
        announce_every: of mode "balanced".
        refused: by mode, what the user has set that does not go with it.
        server: begins the modes with a parameter server; None if users have not asked for them.

    present: the mode. rounds: of local steps; None in the other modes. rules: as given; the steps of a round
    change. discarded: L2 norm of what waited in this rank's residuals whenever local steps ended.
    """

    def __init__(
        self,
        synchronizer: Synchronizer,
        local_settings: Settings,
        rules: LocalRules,
        announce_every: int,
        refused: Mapping[str, str],
        server: ServedSteps | None = None,
    ) -> None:
        self.synchronizer, self.rules = synchronizer, rules
        self._local_settings, self._announce_every, self._server = local_settings, announce_every, server
        self._agreement = ModeAgreement(synchronizer, refused, server)
        self.present = "synchronous"
        self.rounds: LocalRounds | None = None
        self.discarded = 0.0
        self._served_steps = 0
        self._followed, self._finishing, self._stays = 0, False, False
        synchronizer.agreement.modes = self._offered

    def possible(self) -> tuple[str, ...]:
        """Return the modes that `change` can change to on this rank."""
        return self._agreement.possible()

    def why_not(self, mode: str) -> str:
        """Return why a saved mode cannot go on here; empty if it can."""
        return self._agreement.problem(mode) if mode in SERVED_MODES else ""

    @property
    def exchanges_gradients(self) -> bool:
        """Whether steps are with the mean of all ranks' gradients."""
        return self.rounds is None and self.served is None

    def change(
        self,
        optimizer: torch.optim.Optimizer,
        mode: str,
        local_steps: int | None,
        staleness_bound: int | None,
    ) -> None:
        """Go on in another mode; all ranks call it between the same two steps.

        1. End a round of local steps; with a parameter server, wait until all ranks have come here, and take
           over its last version and the optimizer's state.
        2. Tell each other mode, step and a hash of the weights. If they differ, or the mode is impossible on
           a rank, nothing changes.
        3. When local steps end: forget and count what waits in their residuals, and give all ranks the mean
           of their optimizers' states.
        4. When they, or a parameter server, begin: the optimizer goes on with the momentum that was applied
           before compression. Residuals of gradients wait until gradients are exchanged again; with a server
           they are.
        5. When shares follow speed no more, all ranks' batches are equal from the first one on that no rank
           has handed out.
        6. What is left of a sampler's epoch is dealt by rank 0 from now on, or by all ranks alike again.
        7. After steps with a parameter server, of which ranks have taken different numbers, rank 0's
           hyperparameters hold on all ranks.

        optimizer: the user's; its state is changed.

        Raises:
            ConfigurationError: gradients are being exchanged; or, on all ranks, the mode is impossible.
            RankMismatch: on all ranks: they want different modes, are at different steps, or have different
                weights.
            NonFiniteGradient, ExchangeError: see `LocalRounds.end_round` and `average_state`.
        """
        if self.synchronizer.in_round or self.synchronizer.reducer.unapplied:
            raise ConfigurationError(
                f"change_mode({mode!r}) was called between backward() and step(), while gradients are "
                "exchanged. Change between two steps."
            )
        self.meet()
        if self.rounds is not None:
            self.rounds.synchronize()
        self.end_served(optimizer, "change_mode()")
        told = self._agreement.ask(mode, local_steps, staleness_bound, self.steps)
        if mode == self.present != "local" and staleness_bound == self.staleness_bound:
            self.begin_batch()
            return
        if self.rounds is not None and mode != "local":
            self._leave_local(optimizer)
        if self.present == "balanced":
            self._deal_evenly(told)
        self.rules = self.rules if local_steps is None else replace(self.rules, steps=local_steps)
        left = None if self.served is None or self._server is None else self._server.dealt.epochs
        was_served = self.served is not None
        self._enter(mode, staleness_bound)
        self._hand_samples_over(told, left, was_served=was_served)
        if was_served and mode not in SERVED_MODES and self.synchronizer.hyperparameters is None:
            self.synchronizer.hyperparameters = common_if_stepped_apart(
                optimizer, self._served_steps, self.synchronizer.connection.messages
            )
        if self.synchronizer.connection.messages.rank == 0:
            _log.info("from step %d on mode %r%s", self.steps, mode, self._shown_steps())

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Change as the job's plan says, after a step; on all ranks at the same one.

        Not while a rank has joined, or has finished its local steps: it takes no step. What keeps ranks from
        changing does not end the training: it is said, and no mode is offered any more.

        Raises:
            NonFiniteGradient, ExchangeError: see `change`.
        """
        plan = self.synchronizer.agreement.plan
        if plan is None or plan.generation <= self._followed:
            return
        if self._finishing or self.synchronizer.joining.absent:
            return
        self._followed = plan.generation
        if plan.mode is None or self._stays:
            return
        if plan.mode in SERVED_MODES and self._stands_at(plan.mode, plan.staleness_bound):
            return
        try:
            self.change(optimizer, plan.mode, plan.local_steps, plan.staleness_bound)
        except (ConfigurationError, RankMismatch) as error:
            self._stays = True
            _log.error("mode %r goes on, whatever plans say: %s", self.present, error)

    def _stands_at(self, mode: str, staleness_bound: int | None) -> bool:
        return (mode, staleness_bound) == (self.present, self.staleness_bound)

    def _offered(self) -> Sequence[str]:
        if self._stays:
            return ()
        return (self.present, *(mode for mode in self.possible() if mode != self.present))

    @property
    def steps(self) -> int:
        """Steps that this rank has taken, in all modes; as many as the rank that has taken most, before those
        that a parameter server makes now.
        """
        served = 0 if self.served is None else self.served.counters.steps
        return self.synchronizer.agreement.steps + served

    def meet(self) -> None:
        """Compare settings with the other ranks, unless that was done; all ranks call it together."""
        self.synchronizer.meet()

    def set_passes(self, passes: int) -> None:
        """Have a step follow so many backward passes.

        Raises:
            ConfigurationError: a parameter server makes the steps, each after one pass.
        """
        if self.served is not None and passes != 1:
            raise ConfigurationError(f"mode={self.present!r} goes with one backward pass a step")
        self._agreement.passes = passes
        if self.rounds is not None:
            self.rounds.passes = passes

    def restart(self) -> None:
        """Begin as in a new process, on all ranks together, in the present mode."""
        if self.rounds is not None:
            self.rounds.restart()
        if self._server is not None:
            self._server.restart()
        self.synchronizer.restart()
        # Ranks that are new know no plan yet, and get it with the others.
        self._followed = 0
        self._served_steps, self.synchronizer.hyperparameters = 0, None

    # -- a parameter server --

    @property
    def served(self) -> ServedTraining | None:
        """Steps that a parameter server makes; None in the other modes."""
        return None if self._server is None else self._server.training

    def after_served_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Report, and follow plans; see `ServedSteps.after_step` and `follow`."""
        assert self._server is not None, "it has made the step"
        self._served_steps += 1
        if self._server.after_step(optimizer, self._followed):
            self.follow(optimizer)

    def end_served(self, optimizer: torch.optim.Optimizer, where: str) -> None:
        """See `ServedSteps.end`; in other modes, nothing."""
        if self._server is not None:
            self._server.end(optimizer, where)

    def renew_served(self) -> None:
        """In a mode with a parameter server, begin anew with the weights that ranks have now."""
        if self._server is not None:
            self._server.begin(self.present, self._server.staleness_bound)

    @property
    def staleness_bound(self) -> int | None:
        """Of the present mode with a parameter server; None for the usual one."""
        return None if self._server is None else self._server.staleness_bound

    def begin_batch(self) -> None:
        """What has passed since the last step is no part of the next one."""
        if self.served is not None:
            self.served.begin_batch()

    def require_state_here(self, what: str) -> None:
        """Refuse what looks at the optimizer's state while a parameter server's shards have it.

        Raises:
            ConfigurationError: they do.
        """
        if self.served is not None and self.served.begun:
            raise ConfigurationError(
                f"{what} in mode {self.present!r}: the optimizer's state is spread over the ranks' shards. "
                "Call it within `with optimizer.consistent():`, which all ranks enter"
            )

    # -- between two modes --

    def _leave_local(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget what waits: it has been held back for rounds, and applied at once it throws a training back.

        Small character model, 4 ranks, AdamW, 150 steps of mode "local", held-out loss 2.588: exchanged whole
        and applied it made 3.349 of that, and 2.945 ten synchronous steps later; forgotten, 2.588 and 2.541.
        """
        assert self.rounds is not None, "the present mode is local"
        average_state(optimizer.state, self.synchronizer.named, self.synchronizer.connection)
        self.discarded = math.hypot(self.discarded, self.rounds.waiting())
        self.rounds = None

    def _deal_evenly(self, told: Sequence[Mapping[str, Any]]) -> None:
        first = max(each["handed_out"] for each in told)
        self.synchronizer.batches.change(first, (1.0,) * len(told))

    def _hand_samples_over(
        self, told: Sequence[Mapping[str, Any]], left: Epochs | None, *, was_served: bool
    ) -> None:
        """What is left of an epoch is dealt by rank 0 with a parameter server, else by all ranks alike."""
        dealer = self.synchronizer.batches.dealer
        if dealer is None or self._server is None or was_served == (self.present in SERVED_MODES):
            return
        if left is not None:
            dealer.take_over(left)
        elif not was_served:  # else nobody has asked for a batch
            dealt = self._server.dealt
            dealer.hand_over([each["handed_out"] for each in told], dealt.ledger, dealt.batches)

    def _enter(self, mode: str, staleness_bound: int | None) -> None:
        synchronizer = self.synchronizer
        if mode not in _OF_GRADIENTS:
            if self.present in _OF_GRADIENTS and self.rounds is None:
                synchronizer.give_back_momentum()
            synchronizer.pause()
        if mode == "local":
            self.rounds = self.rounds or self.new_rounds()
            self.rounds.rules = self.rules
        elif mode in _OF_GRADIENTS:
            synchronizer.resume()
            if mode == "balanced" and synchronizer.balance is None:
                synchronizer.weigh(self._announce_every)
            if synchronizer.balance is not None:
                synchronizer.balance.restart()
                # Where batches follow nobody's speed, gradients are weighed all the same.
                synchronizer.balance.changes = mode == "balanced"
        self.present = mode
        if self._server is not None:
            self._server.begin(mode, staleness_bound)

    def new_rounds(self) -> LocalRounds:
        """Return rounds of local steps as of before the first one."""
        synchronizer = self.synchronizer
        named = list(synchronizer.named.items())
        made = LocalRounds(
            named,
            self._local_settings,
            self.rules,
            synchronizer.connection,
            self._agreement.passes,
            synchronizer.batches,
        )
        made.at_end = self._round_ended
        return made

    def go_on(
        self, mode: str, rounds: LocalRounds | None, local_steps: int, staleness_bound: int | None
    ) -> None:
        """Take over where a saved training stood, on all ranks the same; ``rounds``: in mode "local"."""
        self.rules = replace(self.rules, steps=local_steps)
        self.rounds = rounds
        self.present = mode  # nothing changes hands
        self._enter(mode, staleness_bound)

    def _round_ended(self, reports: Sequence[Report]) -> None:
        """Report a round as the other modes report a step; all ranks do, also those that have finished."""
        rounds = self.rounds
        assert rounds is not None, "it was one of its rounds"
        self._finishing = any(each.ending == "finish()" for each in reports)
        taken, stats = max(each.steps for each in reports), rounds.stats
        elements = sum(layer.start.numel() for layer in rounds.layers.values())
        sent = StepStatistics(
            payload_bytes=round(stats.payload_bytes / max(taken, 1)),
            kept=stats.buckets[0].kept,
            elements=elements,
            gradient_bytes=4 * elements,
        )
        self.synchronizer.agreement.after_round(sent, taken, stats.exposed_seconds)

    def _shown_steps(self) -> str:
        if self.present == "local":
            return f", {self.rules.steps} local steps a round"
        return "" if self.staleness_bound is None else f", staleness bound {self.staleness_bound}"

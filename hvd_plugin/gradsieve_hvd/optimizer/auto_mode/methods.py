"""What a class derived from that of the user's optimizer has instead of its methods, in mode "auto"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradsieve.density import plain_count
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.supported import refuse_closure
from gradsieve_hvd.optimizer import methods
from gradsieve_hvd.optimizer.arguments import require_known_parameters
from gradsieve_hvd.optimizer.methods import DistributedMethods
from gradsieve_hvd.optimizer.served.training import ServedTraining
from gradsieve_hvd.optimizer.stats import OptimizerStats

from .mode_changes import ModeChanges


class AutoMethods(DistributedMethods):
    """Those of the modes "synchronous" and "balanced" (`DistributedMethods`), and what mode "local" has
    instead.

    A loop is the same in all of them: where gradients stay on their rank, ``synchronize()`` leaves them as
    they are, so that what is clipped between it and ``step()`` are this rank's own.

    mode_changes: where it stands.
    """

    mode_changes: ModeChanges

    @property
    def mode(self) -> str:
        """The present one."""
        return self.mode_changes.present

    @property
    def training(self) -> ServedTraining | None:
        """Of a mode with a parameter server; None in other modes."""
        return self.mode_changes.served

    @property
    def samples_seen(self) -> int | None:
        """Samples of all ranks that have become weights; None without a `DynamicSampler`."""
        served, batches = self.mode_changes.served, self.synchronizer.batches
        return batches.samples_seen if served is None or batches.dealer is None else served.samples_seen

    @property
    def modes(self) -> tuple[str, ...]:
        """Those that `change_mode` can change to now, with what was set and the sampler that there is."""
        return self.mode_changes.possible()

    def change_mode(
        self, mode: str, *, local_steps: int | None = None, staleness_bound: int | None = None
    ) -> None:
        """Go on in another mode; all ranks call it between the same two steps. See `ModeChanges.change`.

        Args:
            mode: one of `modes`.
            local_steps: H, for mode "local"; None for the last one.
            staleness_bound: by how many iterations a rank may lead the slowest, for modes "ssp" and "dssp";
                None for 3 and 15.

        Raises:
            ConfigurationError: on all ranks: it is not one of `modes`.
            RankMismatch: on all ranks: they want different ones, are at different steps, or have different
                weights.
            ExchangeError: a rank did not answer.
        """
        steps, bound = plain_count(local_steps), plain_count(staleness_bound)
        self.mode_changes.change(self, mode, steps, bound)

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        """Make a step of the present mode, and then change it if the job's plan says so.

        In a mode with a parameter server ranks step at their own pace; see `ServedMethods.step`.

        Raises:
            ConfigurationError: there is a closure, or there are parameters that nobody exchanges.
            NonFiniteGradient, RankMismatch, ExchangeError: on all ranks, at once or at the end of a round of
                local steps; nothing was changed since the last weights that all ranks had in common.
        """
        rounds, served, result = self.mode_changes.rounds, self.mode_changes.served, None
        if served is not None:
            refuse_closure((self, closure), {})
            served.step(self, samples=None)
            self.mode_changes.after_served_step(self)
            return None
        if rounds is None:
            result = DistributedMethods.step(self, closure)
        else:
            refuse_closure((self, closure), {})
            require_known_parameters(self, set(self.synchronizer.named.values()))
            self.mode_changes.meet()
            if rounds.begin_step():
                result = super(type(self), self).step()
            rounds.end_step()
        self.mode_changes.follow(self)
        return result

    def synchronize(self) -> None:
        """Wait until all gradients are the mean over ranks; with local steps, or a parameter server, they
        stay what they are.
        """
        if self.mode_changes.exchanges_gradients:
            self.synchronizer.synchronize()

    @contextmanager
    def consistent(self) -> Iterator[None]:
        """Within, weights and the optimizer's state are the same on all ranks, for an evaluation or a
        checkpoint; all ranks enter it after the same step, or within the same round of local steps, which it
        ends. With a parameter server, whose ranks count their own steps, they wait for each other here.

        Raises:
            NonFiniteGradient, RankMismatch, ExchangeError: see `step`.
        """
        if self.mode_changes.rounds is not None:
            self.mode_changes.rounds.synchronize()
        if self.mode_changes.served is not None:
            self.mode_changes.end_served(self, "consistent()")
            self.mode_changes.follow(self)
        yield
        self.mode_changes.begin_batch()

    def join(self) -> int:
        """Call it when this rank's data have run out: it helps the others on until theirs have, too. The mode
        stays then. See `DistributedMethods.join`, and `LocalRounds.finish`.

        Returns:
            the rank that was last; with local steps or a parameter server 0.
        """
        if self.mode_changes.exchanges_gradients:
            return DistributedMethods.join(self)
        if self.mode_changes.rounds is not None:
            self.mode_changes.rounds.finish()
        self.mode_changes.end_served(self, "join()")
        return 0

    def explain(self) -> Explanation:
        """Return how gradients, or differences of weights, travel, and why; ``print`` shows it in a line."""
        rounds, served = self.mode_changes.rounds, self.mode_changes.served
        if served is not None:
            return served.explain()
        return DistributedMethods.explain(self) if rounds is None else rounds.explain()

    def stats(self) -> OptimizerStats:
        """Return what this rank sent in the last round of the present mode, and where its time went; with a
        parameter server, the means of its steps since that began.
        """
        rounds, served = self.mode_changes.rounds, self.mode_changes.served
        if served is not None:
            return served.counters.mean(self.mode_changes.steps)
        return DistributedMethods.stats(self) if rounds is None else rounds.stats

    def restart(self) -> None:
        """Go on among ranks that begin anew; `TrainingState.restore` does it."""
        self.mode_changes.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks the same; they get names from their position.

        Raises:
            ConfigurationError: gradients are being exchanged, or within a round of local steps.
        """
        rounds = self.mode_changes.rounds
        if rounds is not None:
            rounds.require_between_rounds()
        self.mode_changes.end_served(self, "add_param_group()")
        before = set(self.synchronizer.named)
        DistributedMethods.add_param_group(self, param_group)
        for name, parameter in self.synchronizer.named.items():
            if rounds is not None and name not in before:
                rounds.add(name, parameter)
        self.mode_changes.renew_served()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state.

        Raises:
            ConfigurationError: it is with a parameter server's shards; see `consistent`.
        """
        self.mode_changes.require_state_here("state_dict()")
        return dict(super(type(self), self).state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state.

        Raises:
            ConfigurationError: see `state_dict`.
        """
        self.mode_changes.require_state_here("load_state_dict()")
        super(type(self), self).load_state_dict(state_dict)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate so many backward passes before a step.

        Raises:
            ConfigurationError: it is not a number of passes.
        """
        DistributedMethods.set_backward_passes_per_step(self, passes)
        self.mode_changes.set_passes(passes)


METHODS = (
    *methods.METHODS,
    "change_mode",
    "consistent",
    "load_state_dict",
    "mode",
    "modes",
    "state_dict",
    "training",
)
# Else torch would wrap it, and the user's step hooks ran twice.
AutoMethods.step.hooked = True  # type: ignore[attr-defined]

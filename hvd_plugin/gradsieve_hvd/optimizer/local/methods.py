"""What a class derived from that of the user's optimizer has instead of its methods, in mode "local"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.optimizer.arguments import added_to, require_known_parameters, require_passes
from gradsieve_hvd.optimizer.sampling import BatchCounter

from .rounds import LocalRounds
from .stats import LocalStats


class LocalMethods(torch.optim.Optimizer):
    """torch's methods as local updates have them; the class below is the user's.

    local_rounds: what its steps belong to.
    """

    local_rounds: LocalRounds

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a local update with this rank's gradients; the last one of a round exchanges.

        Raises:
            ConfigurationError: there are parameters that nobody exchanges.
            NonFiniteGradient, RankMismatch, ExchangeError: on all ranks at the end of a round; see
                `LocalRounds.end_round`.
        """
        require_known_parameters(self, {layer.parameter for layer in self.local_rounds.layers.values()})
        loss = None
        if self.local_rounds.begin_step(checks=closure is None):
            loss = super(type(self), self).step(closure)
        self.local_rounds.end_step()
        return loss

    def synchronize(self) -> None:
        """Make weights the same on all ranks now, after the same steps on all: for an evaluation or a
        checkpoint between two rounds. See `LocalRounds.synchronize`.
        """
        self.local_rounds.synchronize()

    def finish(self) -> None:
        """Call it when this rank's data have run out; it returns when all ranks' have. See
        `LocalRounds.finish`.
        """
        self.local_rounds.finish()

    def skip_synchronize(self) -> NoReturn:
        """Refuse: gradients stay on their rank.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "mode='local' exchanges no gradients, so there is nothing to synchronize before step(): clip or "
            "unscale p.grad after backward() and call step() alone"
        )

    def join(self) -> NoReturn:
        """Refuse: that is `finish` here.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("mode='local' has no join(): call optimizer.finish() when data have run out")

    def explain(self) -> Explanation:
        """Return what is exchanged and when; ``print`` shows it in a line."""
        return self.local_rounds.explain()

    def stats(self) -> LocalStats:
        """Return what this rank's last round sent, and where its time went."""
        return self.local_rounds.stats

    @property
    def batches(self) -> BatchCounter:
        """The batches that a `DynamicSampler` deals by: one for each local step."""
        return self.local_rounds.batches

    @property
    def samples_seen(self) -> int | None:
        """Samples of all ranks in rounds that were applied, if all take the same steps; None without a
        `DynamicSampler`.
        """
        return self.local_rounds.batches.samples_seen

    def restart(self) -> None:
        """Go on among ranks that may be others than before; see `LocalRounds.restart`."""
        self.local_rounds.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks the same; they get names from their position.

        Raises:
            ConfigurationError: within a round, or a parameter's type cannot be exchanged; nothing was added.
        """
        self.local_rounds.require_between_rounds()
        for name, parameter in added_to(self, param_group, self.local_rounds.layers):
            self.local_rounds.add(name, parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Note how many batches a step uses; their gradients add up until ``step()`` in any case.

        Raises:
            ConfigurationError: it is not a number of passes.
        """
        require_passes(passes)
        self.local_rounds.passes = passes


METHODS = (
    "add_param_group",
    "batches",
    "explain",
    "finish",
    "join",
    "restart",
    "samples_seen",
    "set_backward_passes_per_step",
    "skip_synchronize",
    "stats",
    "step",
    "synchronize",
)
# Else torch would wrap it, and the user's step hooks ran twice.
LocalMethods.step.hooked = True  # type: ignore[attr-defined]

"""What a class derived from that of the user's optimizer has instead of its methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.supported import NOT_SYNCHRONIZED, refuse_closure

from .arguments import added_to, require_known_parameters, require_passes
from .derived_class import with_methods
from .joined_rank import join
from .sampling import BatchCounter
from .stats import OptimizerStats
from .synchronizer import Synchronizer


class DistributedMethods(torch.optim.Optimizer):
    """Horovod's methods, and torch's as a distributed optimizer has them; the class below is the user's.

    synchronizer: sums the gradients. should_synchronize: whether ``step()`` has it do so.
    """

    synchronizer: Synchronizer
    should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until all gradients are the mean (or sum) over ranks; see `Synchronizer.synchronize`."""
        self.synchronizer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have ``step()`` not call ``synchronize()``, which the caller has done::

        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self.should_synchronize = False
        try:
            yield
        finally:
            self.should_synchronize = True

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        """Synchronize, then make the update.

        Raises:
            ConfigurationError: there is a closure, ``synchronize()`` was skipped while gradients travel, or
                there are parameters that nobody exchanges.
            NonFiniteGradient: on all ranks, if a gradient was not finite on one; nothing was changed.
            ExchangeError: a rank did not answer.
        """
        refuse_closure((self, closure), {})
        require_known_parameters(self, set(self.synchronizer.named.values()))
        if self.synchronizer.chosen_for is not None:
            self.synchronizer.chosen_for.look(self.param_groups)
        if self.should_synchronize:
            self.synchronize()
        elif self.synchronizer.in_round:
            raise ConfigurationError(NOT_SYNCHRONIZED)
        with self.synchronizer.outcome.updating():
            return super(type(self), self).step()

    def join(self) -> int:
        """Call it when this rank's data have run out: it helps the others on until theirs have, too.

        Until then this rank takes part with nothing; sums go on being divided by all ranks. Its residual
        waits for its next gradient. At the end it takes over the weights and the state of the rank that
        called it last.

        Returns:
            that rank's number.

        Raises:
            ConfigurationError: gradients are being exchanged.
            NonFiniteGradient: on all ranks; those that go on join again, or train on.
            ExchangeError: a rank did not take its next step in time.
        """
        return join(self.synchronizer, self)

    def explain(self) -> Explanation:
        """Return how compressed gradients travel, and why; ``print`` shows it in a line.

        With ``exchange="auto"`` rank 0 knows what it predicts and measures; other ranks know the path.
        """
        return self.synchronizer.insight.explain()

    def stats(self) -> OptimizerStats:
        """Return what this rank sent in the last round, and where its time went; see `Insight.stats`."""
        return self.synchronizer.insight.stats()

    @property
    def batches(self) -> BatchCounter:
        """The batches that a `DynamicSampler` deals by."""
        return self.synchronizer.batches

    @property
    def shares(self) -> tuple[float, ...]:
        """The ranks' shares of the next batch, in batches of ``batch_size``; 1 unless mode is "balanced"."""
        return self.batches.shares(self.batches.taken)

    @property
    def samples_seen(self) -> int | None:
        """Samples of all ranks that have become weights, each time it was used; None without a
        `DynamicSampler`.
        """
        return self.synchronizer.batches.samples_seen

    def restart(self) -> None:
        """Go on among ranks that may be others than before; see `Synchronizer.restart`.

        `TrainingState.restore` does it. With one of Horovod's states instead::

        state.register_reset_callbacks([optimizer.restart])
        """
        self.synchronizer.restart()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients.

        Raises:
            AssertionError: they are being exchanged.
        """
        if self.synchronizer.in_round:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(): the gradients are being exchanged. To give a step up on all ranks, "
                "after an exception in backward(), call synchronize() and then zero_grad()."
            )
        super(type(self), self).zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks the same; they get names from their position.

        Raises:
            ConfigurationError: gradients are being exchanged, or a parameter's type cannot be; nothing was
                added.
        """
        if self.synchronizer.in_round:
            raise ConfigurationError(
                "add_param_group() was called between backward() and synchronize(), while gradients are "
                "exchanged. Add parameters between two steps."
            )
        for name, parameter in added_to(self, param_group, self.synchronizer.named):
            self.synchronizer.add(name, parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate so many backward passes before gradients are exchanged; between two steps.

        Raises:
            ConfigurationError: it is not a number of passes.
        """
        require_passes(passes)
        self.synchronizer.set_passes(passes)


METHODS = (
    "add_param_group",
    "batches",
    "explain",
    "join",
    "restart",
    "samples_seen",
    "shares",
    "set_backward_passes_per_step",
    "skip_synchronize",
    "stats",
    "step",
    "synchronize",
    "zero_grad",
)
# Else torch would wrap it, and the user's step hooks ran twice.
DistributedMethods.step.hooked = True  # type: ignore[attr-defined]


def derived(plain: type[torch.optim.Optimizer]) -> type:
    """Return a class with `DistributedMethods` directly above ``plain``; see `with_methods`."""
    return with_methods(plain, DistributedMethods, METHODS)

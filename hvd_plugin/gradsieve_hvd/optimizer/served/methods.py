"""What an optimizer that a parameter server updates has instead of torch's methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.supported import refuse_closure
from gradsieve_hvd.optimizer.sampling import ServedBatches

from .counters import ServedCounters
from .training import ServedTraining


class ServedMethods(torch.optim.Optimizer):
    """The methods; the class below is the user's, whose own step runs on the shards.

    training: this rank's part.
    """

    training: ServedTraining

    @property
    def batches(self) -> ServedBatches:
        """Those that a `DynamicSampler` deals."""
        return self.training.batches

    @property
    def samples_seen(self) -> int:
        """Samples of all ranks behind the newest weights, by what ``step(samples=...)`` was told."""
        return self.training.samples_seen

    @property
    def version(self) -> int:
        """How many updates this rank's weights have had."""
        return self.training.version

    def step(self, closure: None = None, *, samples: int | None = None) -> None:  # type: ignore[override]
        """Push the gradients and wait until the mode lets this rank go on; mostly with new weights.

        Args:
            closure: none is allowed.
            samples: in the batch, for `samples_seen` and for modes that follow measured speed; None for as
                many as a `DynamicSampler` has dealt, and 1 without one.

        Raises:
            ConfigurationError: there is a closure, ``samples`` is not the number of samples in the batch,
                training has finished, or it is called within `consistent`.
            NonFiniteGradient, ExchangeError, PayloadError, RankMismatch: on all ranks, whichever rank it
                happened on; training has ended, and the weights are those of the last version that came.
        """
        refuse_closure((self, closure), {})
        if samples is not None and not is_count(samples, 1):
            raise ConfigurationError(f"samples={samples!r}: expected the number of samples in the batch")
        self.training.step(self, samples)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.training.begin_batch()
        super(type(self), self).zero_grad(set_to_none)

    def finish(self) -> None:
        """Call it after the last step: this rank pushes no more, and serves until all ranks have called it.

        Then all have the weights of the last version. A rank that ends without it serves on, too, until the
        others have ended.

        Raises:
            ConfigurationError: it is called within `consistent`.
            ExchangeError: see `step`.
        """
        self.training.finish(self)

    @contextmanager
    def consistent(self, *, state: bool = False) -> Iterator[int]:
        """Within, the model has the weights of the newest version, whose number is yielded, for an evaluation
        or a checkpoint; afterwards this rank's own again::

            with optimizer.consistent() as version:
                evaluate(model)

        Ranks that enter at different times see different versions; after `finish` all have the last one.

        Args:
            state: have the optimizer's state collected, too, for `state_dict` within.

        Raises:
            ConfigurationError: the state is asked for after `finish`.
            ExchangeError: see `step`.
        """
        with self.training.consistent(self, state=state) as version:
            yield version

    def synchronize(self) -> None:
        """Leave gradients as they are: what is clipped between it and ``step()`` are this rank's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Change nothing; see `synchronize`."""
        yield

    def join(self) -> NoReturn:
        """Refuse: that is `finish` here.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "a parameter server has no join(): call optimizer.finish() when this rank's data have run out"
        )

    def explain(self) -> Explanation:
        """Return how gradients travel; ``print`` shows it in a line."""
        return self.training.explain()

    def stats(self) -> ServedCounters:
        """Return what this rank has done so far."""
        return self.training.counters

    def state_dict(self) -> dict[str, Any]:
        """Return the state, before the first step or within ``consistent(state=True)``.

        Raises:
            ConfigurationError: elsewhere, as the state is with the shards then.
        """
        if not self.training.has_state:
            self.training.require_not_begun("state_dict()")
        return dict(super(type(self), self).state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, before the first step; shards begin with it.

        Raises:
            ConfigurationError: after it.
        """
        self.training.require_not_begun("load_state_dict()")
        super(type(self), self).load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: shards keep the parameters that there were.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"add_param_group() of {len(param_group['params'])} parameters: a parameter server keeps the "
            "parameters that it began with. Add them before gradsieve_hvd.DistributedOptimizer(...)"
        )


METHODS = (
    "add_param_group",
    "batches",
    "consistent",
    "explain",
    "finish",
    "join",
    "load_state_dict",
    "samples_seen",
    "skip_synchronize",
    "state_dict",
    "stats",
    "step",
    "synchronize",
    "version",
    "zero_grad",
)
# Else torch would wrap it: the user's step hooks are not for pushes.
ServedMethods.step.hooked = True  # type: ignore[attr-defined]

"""Looking at the newest version of a model that a parameter server keeps, for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.worker import Fresh, Worker

from .weights import ServedWeights


@dataclass(frozen=True, slots=True)
class _Look:
    """What a rank looks at: a version's weights, and perhaps the optimizer's state."""

    version: int
    has_state: bool


class NewestVersion:
    """Within `shown`, this rank's model has the newest version's weights, rather than those that it trains.

    Args:
        weights: of the model.
        named: its parameters, sorted by name.
        put: overwrites them by what has arrived.
    """

    def __init__(
        self,
        weights: ServedWeights,
        named: Sequence[tuple[str, Parameter]],
        put: Callable[[Worker, Mapping[int, tuple[Tensor, bool]]], None],
    ) -> None:
        self._weights, self._named, self._put = weights, named, put
        self._look: _Look | None = None

    @property
    def is_shown(self) -> bool:
        """Whether this is within `shown`."""
        return self._look is not None

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state of that version is here, too."""
        return self._look is not None and self._look.has_state

    @contextmanager
    def shown(self, worker: Worker, groups: torch.optim.Optimizer, *, state: bool) -> Iterator[int]:
        """Yield the version's number; afterwards weights, and state, are what they were before.

        Within another one, that one's version stays, unless it has no state and one is asked for.

        Raises:
            GradsieveError: training has failed.
        """
        before = self._look
        if before is not None and (before.has_state or not state):
            yield before.version
            return
        own, epochs, kept = self._weights.copies(), worker.epochs, groups.state
        fresh = worker.newest(with_state=state)
        try:
            self._put(worker, fresh.tensors)
            groups.state = state_of(fresh, self._named)
            self._look = _Look(fresh.version, has_state=state)
            yield fresh.version
        finally:
            self._weights.restore(own)
            self._look, worker.epochs, groups.state = before, epochs, kept

    def require_not_shown(self, what: str) -> None:
        """Refuse what changes weights within `shown`, whose end would undo it on this rank.

        Raises:
            ConfigurationError: it is there.
        """
        if self.is_shown:
            raise ConfigurationError(
                f"{what} within `with optimizer.consistent():`: the model has other weights there than those "
                "that this rank trains, for a while. Call it after the with block"
            )


def state_of(fresh: Fresh, named: Sequence[tuple[str, Parameter]]) -> defaultdict[Any, dict[str, Any]]:
    """Return the optimizer's state that has arrived, by parameter, where torch keeps it: counts of steps on
    the CPU.
    """
    state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    for number, fields in fresh.state.items():
        parameter = named[number][1]
        state[parameter] = {
            name: value.to(parameter.device) if isinstance(value, Tensor) and value.dim() else value
            for name, value in fields.items()
        }
    return state

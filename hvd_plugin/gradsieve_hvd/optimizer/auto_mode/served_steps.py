"""Steps that a parameter server makes, in a training that goes on in other modes before and after."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradsieve_hvd.optimizer.served.gradients import ServedGradients
from gradsieve_hvd.optimizer.served.training import ServedTraining
from gradsieve_hvd.optimizer.synchronizer import Synchronizer

SERVED_MODES = ("asp", "ssp", "dssp", "dasp")
"""Those that a training may change to: "bsp" is a baseline to compare them with."""


class ServedSteps:
    """Makes them.

    Args:
        optimizer: the user's own; its class makes the updates, on the shards.
        synchronizer: sums gradients in the other modes. What waits in its residuals goes on waiting there,
            and goes with the pushes.
        shards: the ranks that may keep weights.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, synchronizer: Synchronizer, shards: Sequence[int]
    ) -> None:
        self._optimizer, self._synchronizer, self._shards = optimizer, synchronizer, shards

    def begin(self, mode: str, step: int) -> ServedTraining:
        """Return the training in a mode, from weights and a state of the optimizer that all ranks have in
        common; that has not been told to anybody yet.

        step: how many steps were taken before.
        """
        reducer = self._synchronizer.reducer
        named = sorted(self._synchronizer.named.items())
        states = [reducer.state_of(name, parameter) for name, parameter in named if parameter.requires_grad]

        def meet() -> None:
            self._synchronizer.meet()
            self._synchronizer.agreement.at_once(step, SERVED_MODES)

        layers = {state.name: state.layer for state in states if state.layer is not None}
        return ServedTraining(
            self._optimizer,
            ServedGradients(named, layers, reducer.policy),
            named,
            self._synchronizer.connection.transport,
            mode,
            self._shards,
            timeout=reducer.settings.timeout_seconds,
            meet=meet,
            first_step=step,
            gives_back=True,
        )

"""Rank 0's hyperparameters, for ranks that step together after they have stepped apart."""

from __future__ import annotations

import json
import logging

import torch

from gradsieve_hvd.server.shard_optimizer import hyperparameters_of, set_hyperparameters
from gradsieve_hvd.transport.messages import Messages

_log = logging.getLogger("gradsieve.optimizer")


class CommonHyperparameters:
    """Has all ranks make every step with rank 0's learning rates, weight decay and so on.

    With a parameter server ranks take different numbers of steps, and rank 0's hyperparameters hold for all.
    A schedule that counts steps stands elsewhere on each rank afterwards, and ranks that step together by
    different rates are no longer alike.

    Args:
        optimizer: the user's; its parameter groups are changed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def take_over(self, messages: Messages) -> None:
        """Take over what rank 0 has now; all ranks call it.

        Raises:
            ExchangeError: a rank did not answer.
        """
        mine = hyperparameters_of(self._optimizer) if messages.rank == 0 else []
        said = messages.tell(json.dumps(mine).encode(), "hyperparameters").wait()[0]
        if messages.rank != 0:
            set_hyperparameters(self._optimizer, json.loads(said))


def common_if_stepped_apart(
    optimizer: torch.optim.Optimizer, steps: int, messages: Messages
) -> CommonHyperparameters | None:
    """Return what keeps hyperparameters alike from now on, where ranks have taken different numbers of
    ``steps`` apart from each other; all ranks call it, and have rank 0's afterwards.

    Raises:
        ExchangeError: a rank did not answer.
    """
    told = messages.tell(str(steps).encode(), "steps with a parameter server").wait()
    if all(each == told[0] for each in told):
        return None
    common = CommonHyperparameters(optimizer)
    common.take_over(messages)
    if messages.rank == 0:
        _log.warning(
            "ranks have taken %s steps with a parameter server: where a schedule counts steps, rank 0's "
            "holds for all ranks from now on",
            ", ".join(str(int(each)) for each in told),
        )
    return common

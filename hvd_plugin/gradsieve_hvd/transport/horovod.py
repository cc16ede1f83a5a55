"""Messages over Horovod's collectives, whatever it was built with."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from gradsieve.errors import ExchangeError

from .horovod_allgather import handle_finished
from .running_clock import RUNNING

_POLL_SECONDS = 0.001  # sleeping leaves the core to ranks that still compute


class HorovodTransport:
    """The ranks of a process set. Horovod cannot send to one rank: each message is an uneven all-to-all.

    Args:
        process_set: the ranks.
        timeout: how long a message may take, in seconds.
        name: tells transports apart that are used at the same time; the same on all ranks.

    rank, size: see `Transport`.
    """

    def __init__(self, process_set: Any, timeout: float = 300.0, name: str = "messages") -> None:
        self._process_set, self._timeout = process_set, timeout
        self._name = f"gradsieve.transport.{name}"
        self.rank, self.size = process_set.rank(), process_set.size()

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time.
            HorovodInternalError: Horovod was shut down (elastic training catches it).
        """
        import horovod.torch as hvd

        if to == self.rank == source:
            return message
        splits = torch.zeros(self.size, dtype=torch.int32, device="cpu")
        splits[to] = message.numel()
        handle = hvd.alltoall_async(message, splits=splits, name=self._name, process_set=self._process_set)
        self._wait(handle, f"no message from rank {source}")
        received: Tensor = hvd.synchronize(handle)[0]
        return received

    def allreduce(self, values: Tensor) -> Tensor:
        """Return the sum over ranks (fp32 [N], CPU, a new tensor).

        Raises:
            ExchangeError: a rank did not take part in time.
            HorovodInternalError: Horovod was shut down (elastic training catches it).
        """
        import horovod.torch as hvd

        handle = hvd.allreduce_async(
            values, op=hvd.Sum, name=f"{self._name}.sum", process_set=self._process_set
        )
        self._wait(handle, "no sum with the other ranks")
        total: Tensor = hvd.synchronize(handle)
        return total

    def _wait(self, handle: int, missing: str) -> None:
        began = RUNNING.seconds()
        while not handle_finished(handle):
            if RUNNING.seconds() - began > self._timeout:
                raise ExchangeError(
                    f"rank {self.rank}: {missing} within {self._timeout:g} s; all ranks "
                    "must make the same exchanges in the same order"
                )
            time.sleep(_POLL_SECONDS)

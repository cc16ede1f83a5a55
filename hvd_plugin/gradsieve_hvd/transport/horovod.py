"""Messages and sums over Horovod's collectives, whatever it was built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import DeviceSums, SummingOnDevices, Transport
from .horovod_allgather import wait_for_handle


class HorovodTransport:
    """The ranks of a process set. Horovod cannot send to one rank: each message is an uneven all-to-all.

    Args:
        process_set: the ranks.
        timeout: how long a message may take, in seconds.
        name: tells transports apart that are used at the same time; the same on all ranks.

    rank, size: see `Transport`. device_sums: see `SummingOnDevices`.
    """

    device_sums: DeviceSums | None = None

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
        wait_for_handle(handle, self._timeout, f"rank {self.rank}: no message from rank {source}")
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
        wait_for_handle(handle, self._timeout, f"rank {self.rank}: no sum with the other ranks")
        total: Tensor = hvd.synchronize(handle)
        return total


class HorovodDeviceSums:
    """Sums by Horovod's all-reduce, which it leaves to NCCL if it was built with it: whole gradients would
    otherwise cross to the host and back, and be added up there.

    Args:
        process_set: the ranks.
        timeout: how long a sum may take, in seconds.
        name: tells these sums from others that are under way at the same time; the same on all ranks.
        device_type: of the tensors.
    """

    def __init__(self, process_set: Any, timeout: float, name: str, device_type: str = "cuda") -> None:
        self._process_set, self._timeout, self._name = process_set, timeout, f"gradsieve.{name}"
        self.device_type = device_type

    def begin(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `DeviceSums`."""
        import horovod.torch as hvd

        handle = hvd.allreduce_async(
            values, op=hvd.Sum, name=f"{self._name}.{name}", process_set=self._process_set
        )

        def finish() -> Tensor:
            wait_for_handle(handle, self._timeout, f"rank {self._process_set.rank()}: no sum of {name}")
            total: Tensor = hvd.synchronize(handle)
            return total

        return finish


def carries_gradients(transport: Transport) -> bool:
    """Whether some of what an optimizer sends over a transport goes through Horovod."""
    sums = transport.device_sums if isinstance(transport, SummingOnDevices) else None
    return isinstance(transport, HorovodTransport) or isinstance(sums, HorovodDeviceSums)

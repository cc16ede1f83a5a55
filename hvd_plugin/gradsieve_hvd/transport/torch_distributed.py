"""Messages over a process group of ``torch.distributed`` that sends from CPUs (gloo)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradsieve.errors import ExchangeError


class TorchDistributedTransport:
    """The ranks of a process group. Each message is preceded by its length.

    Args:
        group: the process group; None for the default one.
        timeout: how long a message may take, in seconds.

    rank, size: see `Transport`.
    """

    def __init__(self, group: Any = None, timeout: float = 300.0) -> None:
        self._group, self._timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time, or the connection to it was lost.
        """
        if to == self.rank == source:
            return message
        length = torch.empty(1, dtype=torch.int64, device="cpu")
        self._swap(torch.tensor([message.numel()], device="cpu"), to, length, source)
        received = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        self._swap(message, to, received, source)
        return received

    def allreduce(self, values: Tensor) -> Tensor:
        """Return the sum over ranks (fp32 [N], CPU, a new tensor).

        Raises:
            ExchangeError: a rank did not take part in time, or the connection to it was lost.
        """
        total = values.clone()
        try:
            dist.all_reduce(total, group=self._group, async_op=True).wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise ExchangeError(
                f"rank {self.rank}: no sum with the other ranks within {self._timeout:g} s; all ranks must "
                "make the same exchanges in the same order"
            ) from error
        return total

    def _swap(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        try:
            arriving = dist.irecv(received, self._global(source), group=self._group)
            leaving = dist.isend(sent, self._global(to), group=self._group)
            for work in (arriving, leaving):
                if work is not None:
                    work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise ExchangeError(
                f"rank {self.rank}: sending to rank {to} and receiving from rank {source} failed, or took "
                f"longer than {self._timeout:g} s; all ranks must make the same exchanges in the same order"
            ) from error

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)

"""Messages over a process group of ``torch.distributed`` that sends from CPUs (gloo), and sums by any."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradsieve.errors import ExchangeError

from .base import Arriving, DeviceSums
from .running_clock import RUNNING
from .torch_mail import TorchMail

_TAG = 0
_TAGS_OF_A_CHANNEL = 2  # for the lengths of messages, and for these
_FIRST_CHANNEL, _CHANNELS = 2, 1 << 14
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 1e-3  # seconds; asleep, the thread leaves its core to those that compute

_Sending = list[tuple[dist.Work | None, Tensor]]
"""With the memory that is sent from."""


class TorchDistributedTransport:
    """The ranks of a process group. Each message is preceded by its length.

    Args:
        group: the process group; None for the default one.
        timeout: how long a message may take, in seconds.

    rank, size: see `Transport`. device_sums: see `SummingOnDevices`. in_order: sums wait until all ranks are
    within, and sends until they are received, so ranks must wait for things in one order.
    """

    device_sums: DeviceSums | None = None
    in_order = True

    def __init__(self, group: Any = None, timeout: float = 300.0) -> None:
        self._group, self._timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._mails = itertools.count()

    def send_receive(self, message: Tensor, to: int, source: int) -> Tensor:
        """Send to one rank and return what another one has sent at the same time.

        Raises:
            ExchangeError: a rank did not take part in time, or the connection to it was lost.
        """
        if to == self.rank == source:
            return message
        with self._failing(f"sending to rank {to} and receiving from rank {source}"):
            sending = self._begin_send(message, to, _TAG, _TAG)
            received = self._received(source, _TAG, _TAG)
            self._finish_send(sending)
        return received

    def begin_allgather(self, message: Tensor, channel: int = 0) -> Arriving:
        """Send a message to all ranks, and return without waiting; see `Posting`.

        Raises:
            ExchangeError: see `send_receive`.
        """
        return self.begin_alltoall([message] * self.size, channel)

    def begin_alltoall(self, messages: Sequence[Tensor], channel: int = 0) -> Arriving:
        """Send each rank its own message, and return without waiting; see `PostingBlocks`.

        Raises:
            ExchangeError: see `send_receive`.
        """
        tag = _FIRST_CHANNEL + channel % _CHANNELS * _TAGS_OF_A_CHANNEL
        others = [(self.rank + away) % self.size for away in range(1, self.size)]
        with self._failing("sending to the other ranks"):
            sending = [self._begin_send(messages[to], to, tag, tag + 1) for to in others]

        def arriving() -> Iterator[Tensor]:
            for source in range(self.size):
                with self._failing(f"receiving from rank {source}"):
                    own = source == self.rank
                    received = messages[source] if own else self._received(source, tag, tag + 1)
                yield received
            with self._failing("sending to the other ranks"):
                for each in sending:
                    self._finish_send(each)

        return arriving

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

    def open_mail(self) -> TorchMail:
        """See `gradsieve_hvd.transport.mail.Mailing`."""
        ranks = [self._global(rank) for rank in range(self.size)]
        return TorchMail(self._group, ranks, self.rank, next(self._mails))

    def _begin_send(self, message: Tensor, to: int, length_tag: int, tag: int) -> _Sending:
        length = torch.tensor([message.numel()], device="cpu")
        parts = ((length, length_tag), (message.contiguous(), tag))
        return [(dist.isend(part, self._global(to), self._group, each), part) for part, each in parts]

    def _received(self, source: int, length_tag: int, tag: int) -> Tensor:
        length = torch.empty(1, dtype=torch.int64, device="cpu")
        self._wait(dist.irecv(length, self._global(source), self._group, length_tag))
        received = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        self._wait(dist.irecv(received, self._global(source), self._group, tag))
        return received

    def _finish_send(self, sending: _Sending) -> None:
        for work, _ in sending:
            self._wait(work)

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait(timedelta(seconds=self._timeout))

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ExchangeError(
                f"rank {self.rank}: {what} failed, or took longer than {self._timeout:g} s; all ranks must "
                "make the same exchanges in the same order"
            ) from error

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


class TorchDeviceSums:
    """Sums by a process group that has a library of its own for tensors on GPUs: NCCL.

    Args:
        group: the process group; None for the default one. Sums are begun in one order on all its ranks.
        timeout: how long a sum may take, in seconds.
        device_type: of the tensors.
    """

    def __init__(self, group: Any, timeout: float, device_type: str = "cuda") -> None:
        self._group, self._timeout, self.device_type = group, timeout, device_type

    def begin(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `DeviceSums`."""
        total = values.clone()
        work = dist.all_reduce(total, group=self._group, async_op=True)
        assert work is not None, "it is asynchronous, and this rank is one of the group's"

        def finish() -> Tensor:
            began, nap = RUNNING.seconds(), _SHORTEST_NAP
            missing = (
                f"rank {dist.get_rank(self._group)}: no sum of {name} within {self._timeout:g} s, or the "
                "connection to a rank was lost; all ranks must make the same exchanges in the same order"
            )
            while not work.is_completed():  # NCCL's own wait would only hold back the GPU's stream
                if RUNNING.seconds() - began > self._timeout:
                    raise ExchangeError(missing)
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
            try:
                work.wait(timedelta(seconds=self._timeout))
            except RuntimeError as error:
                raise ExchangeError(missing) from error
            return total

        return finish


def sums_by_nccl(group: Any) -> bool:
    """Whether a process group of ``torch.distributed`` (None: the default one) sums by NCCL on GPUs."""
    return "nccl" in str(dist.get_backend_config(group))

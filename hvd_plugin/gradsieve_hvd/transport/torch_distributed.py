"""Messages over a process group of ``torch.distributed`` that sends from CPUs (gloo)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradsieve.errors import ExchangeError

from .base import Arriving
from .torch_mail import TorchMail

_TAG = 0
_TAGS_OF_A_CHANNEL = 2  # for the lengths of messages, and for these
_FIRST_CHANNEL, _CHANNELS = 2, 1 << 14

_Sending = list[tuple[dist.Work | None, Tensor]]
"""With the memory that is sent from."""


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
        tag = _FIRST_CHANNEL + channel % _CHANNELS * _TAGS_OF_A_CHANNEL
        others = [(self.rank + away) % self.size for away in range(1, self.size)]
        with self._failing("sending to the other ranks"):
            sending = [self._begin_send(message, to, tag, tag + 1) for to in others]

        def arriving() -> Iterator[Tensor]:
            for source in range(self.size):
                with self._failing(f"receiving from rank {source}"):
                    received = message if source == self.rank else self._received(source, tag, tag + 1)
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

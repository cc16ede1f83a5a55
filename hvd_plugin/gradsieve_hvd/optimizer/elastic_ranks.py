"""Ranks of elastic Horovod, which come and go: a transport to those that are there."""

from __future__ import annotations

import os
from typing import Any

from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.choose import choose_transport
from gradsieve_hvd.transport.horovod import HorovodTransport


class ElasticRanks:
    """The ranks of a process set, under ``hvd.elastic``.

    An optimizer connects to them in its first round, and again in the first one after each reset: survivors
    and newcomers are at the same place then. When optimizers are made, survivors may not make one.

    Args:
        process_set: Horovod's.
        timeout: how long a message may take, in seconds.
        on_gpu: whether this rank's gradients lie on one GPU.
    """

    def __init__(self, process_set: Any, timeout: float, *, on_gpu: bool = False) -> None:
        self._process_set, self._timeout, self._on_gpu = process_set, timeout, on_gpu

    def unconnected(self) -> Transport:
        """Return one that only knows how many ranks there are, and which one this is."""
        return HorovodTransport(self._process_set, self._timeout)

    def connect(self) -> Transport:
        """Return a transport; all ranks call it together.

        Raises:
            ExchangeError: a rank does not take part.
        """
        return choose_transport(self._process_set, self._timeout, on_gpu=self._on_gpu).transport


def is_elastic() -> bool:
    """Whether this process is a rank of elastic Horovod, which says so in its environment."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"

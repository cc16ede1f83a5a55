"""A sampler's part in modes with a parameter server, where rank 0 deals batches to whoever asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from gradsieve_hvd.server.ranges import Pairs
from gradsieve_hvd.server.worker import Worker

from .sampler_state import Epochs
from .served_batches import ServedBatches


class Training(Protocol):
    """What a sampler needs of a training with a parameter server."""

    batches: ServedBatches

    @property
    def ranks(self) -> int:
        """How many train."""
        ...

    @property
    def begun(self) -> bool:
        """Whether the shards have the weights."""
        ...

    @property
    def epochs(self) -> Epochs:
        """Those that are not over, and what the weights have used of them."""
        ...

    def begin(self, groups: Any) -> Worker:
        """Return this rank's worker, which begins to train with the first call."""
        ...

    def require_not_begun(self, what: str) -> None:
        """Raise if the shards have the weights."""
        ...


class ServedDealing:
    """Asks for batches.

    Args:
        optimizer: with a ``training`` (`Training`) in modes with a parameter server, and None in others.
        data: equal on all ranks; see `gradsieve_hvd.server.sample_ledger.Data`.
    """

    def __init__(self, optimizer: Any, data: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._data = {**data, "resume": []}

    @property
    def training(self) -> Training | None:
        """The present one; None without a parameter server."""
        training: Training | None = getattr(self._optimizer, "training", None)
        return training

    @property
    def batches(self) -> int:
        """The mean number of an epoch's batches for each rank, rounded up."""
        return -(-int(self._data["samples"]) // (self._served.ranks * int(self._data["batch_size"])))

    def resume(self, epochs: Epochs) -> None:
        """Have them go on from what was used of them, when ranks that know of none begin."""
        self._data["resume"] = list(epochs)

    def deal(self, epoch: int) -> Iterator[Pairs]:
        """Yield the batches of an iteration that begins; see `ServedBatches.deal`."""
        return self._served.batches.deal(self._begin, epoch, self._data)

    def go_on(self, epoch: int) -> Iterator[Pairs]:
        """Yield more batches of one that began without a parameter server."""
        return self._served.batches.go_on(self._begin, epoch, self._data)

    def _begin(self) -> Worker:
        return self._served.begin(self._optimizer)

    @property
    def _served(self) -> Training:
        assert self.training is not None, "there is a parameter server"
        return self.training

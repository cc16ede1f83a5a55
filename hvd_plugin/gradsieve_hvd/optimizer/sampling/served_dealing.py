"""A sampler's part in modes with a parameter server, where rank 0 deals batches to whoever asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.server.ranges import Pairs, Ranges, count

from .served_batches import ServedBatches


class ServedDealing:
    """Asks for batches, and knows what to save and to load of those that all ranks have used.

    Args:
        optimizer: with a ``training`` and its ``batches``; see
            `gradsieve_hvd.optimizer.served.training.ServedTraining`.
        data: equal on all ranks; see `gradsieve_hvd.server.sample_ledger.Data`.
    """

    def __init__(self, optimizer: Any, data: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._data = {**data, "resume": []}

    @property
    def batches(self) -> int:
        """The mean number of an epoch's batches for each rank, rounded up."""
        ranks: int = self._optimizer.training.ranks
        return -(-int(self._data["samples"]) // (ranks * int(self._data["batch_size"])))

    def deal(self, epoch: int) -> Iterator[Pairs]:
        """See `ServedBatches.deal`."""
        training = self._optimizer.training
        batches: ServedBatches = training.batches
        return batches.deal(lambda: training.begin(self._optimizer), epoch, self._data)

    def begin_epoch(self) -> None:
        """Another epoch comes than the one before."""
        self._optimizer.training.batches.begin_epoch()

    def state(self) -> dict[str, Any]:
        """Return what a sampler saves; see `load`.

        Raises:
            ConfigurationError: it is not known now; see `ServedTraining.epochs`.
        """
        epochs = self._optimizer.training.epochs
        first, used = epochs[0] if epochs else (0, ())
        return {
            "epoch": first,
            "used": count(used),
            "epochs": epochs,
            "samples": self._data["samples"],
            "samples_seen": self._optimizer.samples_seen,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there, before the first batch.

        Raises:
            ConfigurationError: batches were dealt; or the state says nonsense.
        """
        training = self._optimizer.training
        training.require_not_begun("DynamicSampler.load_state_dict()")
        epochs = state.get("epochs", [(state["epoch"], ((0, state["used"]),) if state["used"] else ())])
        try:
            used = [(int(epoch), Ranges(tuple(pairs))) for epoch, pairs in epochs]
            wrong = any(each.pairs[-1][1] > self._data["samples"] for _, each in used if each)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the state of a DynamicSampler: epochs={epochs!r}: {error}") from error
        if wrong:
            raise ConfigurationError(
                f"the state of a DynamicSampler has used places beyond {self._data['samples']} samples"
            )
        self._data["resume"] = [(epoch, each.pairs) for epoch, each in used]
        training.batches.seen_before = state["samples_seen"]


def within_an_epoch(state: Mapping[str, Any]) -> bool:
    """Whether a saved state has used anything but the first places of one epoch's order."""
    used = [pair for _, pairs in state.get("epochs", ()) for pair in pairs]
    return bool(used) and list(map(list, used)) != [[0, state["used"]]]

"""What a sampler saves: the epochs that are not over, and the places that were used of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve.policies import state as saved
from gradsieve_hvd.server.ranges import Pairs, Ranges, count

Epochs = Sequence[tuple[int, Pairs]]
"""Those begun first come first; of each its number, and its places in the order of its shuffle."""


def packed(epochs: Epochs, samples: int, seen: int | None) -> dict[str, Any]:
    """Return what is saved. samples: in the data set. seen: behind the weights."""
    (epoch, used), *_ = epochs
    return {
        "epoch": epoch,
        "used": count(used),
        "epochs": [(number, tuple(pairs)) for number, pairs in epochs],
        "samples": samples,
        "samples_seen": seen,
    }


def unpacked(state: Mapping[str, Any], samples: int) -> tuple[list[tuple[int, Pairs]], int]:
    """Return the epochs and the samples behind the weights, for a data set of so many.

    Raises:
        ConfigurationError: it is of a data set of another size, or no state.
    """
    epoch, used = saved.count(state, "epoch"), saved.count(state, "used")
    known, seen = saved.count(state, "samples"), saved.count(state, "samples_seen")
    if known != samples or used > known:
        raise ConfigurationError(
            f"the state of a DynamicSampler is of a data set of {known} samples, and this one has "
            f"{samples}: which of them were used cannot be told. Begin a new epoch instead."
        )
    whole = state.get("epochs", [(epoch, [(0, used)] if used else [])])
    try:
        epochs = [(int(number), Ranges((a, b) for a, b in pairs).pairs) for number, pairs in whole]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the state of a DynamicSampler: epochs={whole!r}: {error}") from error
    if not epochs or any(pairs and pairs[-1][1] > samples for _, pairs in epochs):
        raise ConfigurationError(
            f"the state of a DynamicSampler: epochs={whole!r}: of {samples} samples there is no such place"
        )
    return epochs, seen

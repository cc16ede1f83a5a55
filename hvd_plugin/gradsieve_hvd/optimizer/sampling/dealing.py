"""Which part of an epoch's samples each rank gets in each step: computed alike by all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gradsieve.errors import ConfigurationError


def apportioned(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return ``total`` samples divided by shares: at least one each, and what rounding leaves to those that
    it costs most, of several to the first.

    total: at least as many as there are shares, which are positive.
    """
    free, whole = total - len(shares), sum(shares)
    exact = [max(total * share / whole - 1, 0.0) for share in shares]
    # Those that get one sample although their share is less take it from all others.
    scale = free / sum(exact) if sum(exact) else 0.0
    wanted = [scale * each for each in exact]
    sizes = [min(int(each), free) for each in wanted]
    by_loss = sorted(range(len(shares)), key=lambda rank: (sizes[rank] - wanted[rank], rank))
    for rank in by_loss[: free - sum(sizes)]:
        sizes[rank] += 1
    return tuple(1 + size for size in sizes)


class Dealing:
    """An epoch's samples, cut into global batches, and these into one part per rank.

    A global batch has ``ranks * batch_size`` samples, whatever the shares are. The last one is smaller, or a
    little larger where else a rank would have got none.

    Args:
        samples: in the data set.
        ranks: that train.
        batch_size: of a rank with a share of 1.

    Raises:
        ConfigurationError: there is not one sample for each rank.
    """

    def __init__(self, samples: int, ranks: int, batch_size: int) -> None:
        if samples < ranks:
            raise ConfigurationError(f"{samples} samples cannot be dealt to {ranks} ranks, at least one each")
        self.ranks = ranks
        self._samples, self._nominal = samples, ranks * batch_size
        whole, rest = divmod(samples, self._nominal)
        self.batches = whole + (rest >= ranks or not whole)

    def total(self, number: int) -> int:
        """Return the samples of all ranks in the epoch's batch of that number."""
        return self._samples - number * self._nominal if number == self.batches - 1 else self._nominal

    def before(self, number: int) -> int:
        """Return the samples of all batches before that number."""
        return self._samples if number >= self.batches else number * self._nominal

    def sizes(self, number: int, shares: Sequence[float]) -> tuple[int, ...]:
        """Return every rank's samples in a batch."""
        return apportioned(self.total(number), shares)

    def part(self, number: int, shares: Sequence[float], rank: int) -> range:
        """Return the places in the epoch's order of what a rank gets of a batch."""
        sizes = self.sizes(number, shares)
        first = number * self._nominal + sum(sizes[:rank])
        return range(first, first + sizes[rank])

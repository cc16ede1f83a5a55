"""Which rank keeps which tensors: whole ones, balanced by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Partition:
    """owner: the rank that keeps each tensor, by number of the tensor."""

    owner: tuple[int, ...]

    @classmethod
    def balanced(cls, sizes: Sequence[int], ranks: Sequence[int]) -> Partition:
        """Return the partition of tensors of ``sizes`` bytes among ``ranks``.

        Largest first, each to the rank that has least (the first of several): at most 4/3 of the best
        possible load, or one tensor that is larger than that.
        """
        load, owner = dict.fromkeys(ranks, 0), [0] * len(sizes)
        for number in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
            owner[number] = min(ranks, key=lambda rank: (load[rank], rank))
            load[owner[number]] += sizes[number]
        return cls(tuple(owner))

    @property
    def shards(self) -> frozenset[int]:
        """The ranks that keep something."""
        return frozenset(self.owner)

    def of_shard(self, rank: int) -> list[int]:
        """Return the numbers of the tensors that a rank keeps, increasing."""
        return [number for number, owner in enumerate(self.owner) if owner == rank]

"""Rules with one density for all layers and steps (after a warm-up)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gradsieve.config.base import CompressionConfig, require, require_band
from gradsieve.density import is_count, is_fraction
from gradsieve.selection import Selector
from gradsieve.selectors import GroupTopKSelector, LaplaceSelector, SampledSelector, TopKSelector


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopKConfig(CompressionConfig):
    """Exactly the k = ceil(density * N) largest entries of every tensor."""

    algorithm: ClassVar[str] = "topk"

    def selector(self) -> Selector:
        """Return the exact rule."""
        return TopKSelector()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopKConfig(CompressionConfig):
    """The same number of entries from every group of consecutive elements (method C).

    group_size: elements per group. 1 024 **(r)** makes 10 of 1 024 at a density of 0.01.
    """

    algorithm: ClassVar[str] = "group_topk"

    group_size: int = 1024

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require(is_count(self.group_size, 1), self, "group_size", "an integer of at least 1")

    def selector(self) -> Selector:
        """Return the group rule."""
        return GroupTopKSelector(self.group_size)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceConfig(CompressionConfig):
    """About k entries above one threshold, which is estimated, corrected and carried over (method E).

    band: accepted number of entries as multiples of k, lowest and highest. (0.8, 1.25) **(r)**: narrower
        costs counting, wider lets the payload's size vary.
    """

    algorithm: ClassVar[str] = "laplace"

    band: tuple[float, float] = (0.8, 1.25)

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require_band(self.band, self)

    def selector(self) -> Selector:
        """Return the Laplace rule."""
        return LaplaceSelector(self.band)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampledConfig(CompressionConfig):
    """About k entries above the threshold of a sample, reduced again if too many (Deep Gradient Compression).

    sample: fraction of a tensor's elements to look at first, in (0, 1]. The paper gives 0.001 to 0.01.
    band: accepted number of entries as multiples of k, lowest and highest.
    seed: which elements are looked at.
    """

    algorithm: ClassVar[str] = "sampled"

    sample: float = 0.01
    band: tuple[float, float] = (0.8, 1.25)
    seed: int = 0

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require(is_fraction(self.sample), self, "sample", "a number in (0, 1]")
        require_band(self.band, self)
        require(is_count(self.seed, 0), self, "seed", "an integer of at least 0")

    def selector(self) -> Selector:
        """Return the sampled rule."""
        return SampledSelector(self.sample, self.band, self.seed)

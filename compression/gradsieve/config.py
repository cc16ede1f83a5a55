"""How much is sent, and by which rule: frozen settings, checked when they are made.

A configuration holds no state and may serve any number of optimizers; thresholds and residuals belong to the
optimizer that uses it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, get_args

from gradsieve.codec.values import ValueDtype
from gradsieve.density import is_count, is_fraction, is_number
from gradsieve.errors import ConfigurationError
from gradsieve.schedule import DensityWarmup
from gradsieve.selection import Selector
from gradsieve.selectors import GroupTopKSelector, LaplaceSelector, TopKSelector

Algorithm = Literal["topk", "group_topk", "laplace"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig(ABC):
    """What all rules share; make one with :class:`Compression`.

    density: fraction of a tensor's entries to send, in (0, 1]. 0.01 is where accuracy is usually kept.
    min_elements: tensors with fewer elements are sent dense, their bytes being few. 10 000 is the size
        threshold of method A **(r)**.
    value_dtype: number format on the wire: "float32", "float16", "bfloat16", or "int8", "int4", "int2" (sign
        and level between the smallest and largest magnitude of 256 values). The rounding goes to the
        residual, so no format costs gradient mass.
    warmup: density of the first steps; None starts at ``density``.
    error_feedback: keep what was not sent for the next steps. Without it most gradients never arrive.

    Raises ConfigurationError, naming the field, its value and what is allowed.
    """

    algorithm: ClassVar[Algorithm]

    density: float = 0.01
    min_elements: int = 10_000
    value_dtype: ValueDtype = "float32"
    warmup: DensityWarmup | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        dtypes = get_args(ValueDtype)
        _require(is_fraction(self.density), self, "density", "a number in (0, 1]")
        _require(is_count(self.min_elements, 0), self, "min_elements", "an integer of at least 0")
        _require(self.value_dtype in dtypes, self, "value_dtype", f"one of {', '.join(dtypes)}")
        _require(isinstance(self.warmup, DensityWarmup | None), self, "warmup", "a DensityWarmup or None")
        _require(isinstance(self.error_feedback, bool), self, "error_feedback", "True or False")
        if self.warmup is not None and self.warmup.start < self.density:
            raise _not_allowed(self, "warmup", f"a warm-up that starts at {self.density} (density) or above")

    def density_at(self, step: int) -> float:
        """Return the density of an optimizer step, counted from 0."""
        return self.density if self.warmup is None else self.warmup.density_at(step, self.density)

    @abstractmethod
    def selector(self) -> Selector:
        """Return the rule that chooses entries."""

    def describe(self) -> dict[str, Any]:
        """Return all settings as plain JSON values: what ranks compare when they start, and reports print."""
        return {
            "algorithm": self.algorithm,
            **{key: _plain(value) for key, value in dataclasses.asdict(self).items()},
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopKConfig(CompressionConfig):
    """Exactly the k = ceil(density * N) largest entries of every tensor."""

    algorithm: ClassVar[Algorithm] = "topk"

    def selector(self) -> Selector:
        """Return the exact rule."""
        return TopKSelector()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopKConfig(CompressionConfig):
    """The same number of entries from every group of consecutive elements (method C).

    group_size: elements per group. 1 024 **(r)** makes 10 of 1 024 at a density of 0.01.
    """

    algorithm: ClassVar[Algorithm] = "group_topk"

    group_size: int = 1024

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        _require(is_count(self.group_size, 1), self, "group_size", "an integer of at least 1")

    def selector(self) -> Selector:
        """Return the group rule."""
        return GroupTopKSelector(self.group_size)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceConfig(CompressionConfig):
    """About k entries above one threshold, which is estimated, corrected and carried over (method E).

    band: accepted number of entries as multiples of k, lowest and highest. (0.8, 1.25) **(r)**: narrower
        costs counting, wider lets the payload's size vary.
    """

    algorithm: ClassVar[Algorithm] = "laplace"

    band: tuple[float, float] = (0.8, 1.25)

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        _require(
            _is_band(self.band), self, "band", "two numbers, the first in (0, 1] and the second 1 or more"
        )

    def selector(self) -> Selector:
        """Return the Laplace rule."""
        return LaplaceSelector(self.band)


class Compression:
    """Makers of configurations, one per rule; the fields are explained at the classes that they return."""

    @staticmethod
    def topk(
        density: float = 0.01,
        *,
        min_elements: int = 10_000,
        value_dtype: ValueDtype = "float32",
        warmup: DensityWarmup | None = None,
        error_feedback: bool = True,
    ) -> TopKConfig:
        """Return settings for exact top-k."""
        return TopKConfig(
            density=density,
            min_elements=min_elements,
            value_dtype=value_dtype,
            warmup=warmup,
            error_feedback=error_feedback,
        )

    @staticmethod
    def group_topk(
        density: float = 0.01,
        *,
        group_size: int = 1024,
        min_elements: int = 10_000,
        value_dtype: ValueDtype = "float32",
        warmup: DensityWarmup | None = None,
        error_feedback: bool = True,
    ) -> GroupTopKConfig:
        """Return settings for group top-k."""
        return GroupTopKConfig(
            density=density,
            group_size=group_size,
            min_elements=min_elements,
            value_dtype=value_dtype,
            warmup=warmup,
            error_feedback=error_feedback,
        )

    @staticmethod
    def laplace(
        density: float = 0.01,
        *,
        band: tuple[float, float] = (0.8, 1.25),
        min_elements: int = 10_000,
        value_dtype: ValueDtype = "float32",
        warmup: DensityWarmup | None = None,
        error_feedback: bool = True,
    ) -> LaplaceConfig:
        """Return settings for the Laplace threshold."""
        return LaplaceConfig(
            density=density,
            band=band,
            min_elements=min_elements,
            value_dtype=value_dtype,
            warmup=warmup,
            error_feedback=error_feedback,
        )


def _require(holds: bool, config: CompressionConfig, field: str, allowed: str) -> None:
    if not holds:
        raise _not_allowed(config, field, allowed)


def _not_allowed(config: CompressionConfig, field: str, allowed: str) -> ConfigurationError:
    setting = f"Compression.{config.algorithm}: {field}={getattr(config, field)!r}"
    return ConfigurationError(f"{setting} is not allowed; it must be {allowed}")


def _is_band(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2 or not all(map(is_number, value)):
        return False
    return bool(0 < value[0] <= 1 <= value[1] < float("inf"))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

"""What all configurations share, and how a wrong setting is refused."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NoReturn, TypedDict, get_args

import torch

from gradsieve.caller import warn_caller
from gradsieve.clipping import ClippedFeedback
from gradsieve.codec.values import ValueDtype
from gradsieve.density import is_count, is_fraction, is_number
from gradsieve.errors import ConfigurationError, HighDensityWarning
from gradsieve.momentum import MomentumCorrection, MomentumFeedback
from gradsieve.policies import BoundedPolicy, FixedPolicy, Policy, Steering, WarmupPolicy
from gradsieve.residual import ErrorFeedback, NoResidual, Residual
from gradsieve.rounded_residual import RoundedResidual
from gradsieve.schedule import DensityWarmup
from gradsieve.selection import Selector

ResidualDtype = Literal["float32", "bfloat16"]
_HIGH_DENSITY = 0.5


class CommonSettings(TypedDict, total=False):
    """The settings that every maker takes besides its own; see :class:`CompressionConfig`."""

    min_elements: int
    value_dtype: ValueDtype
    warmup: DensityWarmup | None
    error_feedback: bool
    residual_dtype: ResidualDtype
    momentum: MomentumCorrection | None
    clip_norm: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig(ABC):
    """What all rules share; make one with :class:`gradsieve.Compression`.

    density: fraction of a tensor's entries to send, in (0, 1]. 0.01 is where accuracy is usually kept; from
        0.5 on there is a HighDensityWarning.
    min_elements: tensors with fewer elements are sent dense, their bytes being few. 10 000 is the size
        threshold of method A **(r)**.
    value_dtype: number format on the wire: "float32", "float16", "bfloat16", or "int8", "int4", "int2" (sign
        and level between the smallest and largest magnitude of 256 values). The rounding goes to the
        residual, so no format costs gradient mass.
    warmup: density of the first steps; None starts at ``density``.
    error_feedback: keep what was not sent for the next steps. Without it most gradients never arrive.
    residual_dtype: number format of what is kept: "float32", or "bfloat16" in half the memory, which costs
        gradient mass; see :class:`gradsieve.rounded_residual.RoundedResidual`.
    momentum: momentum before compression instead of in the optimizer; None leaves it to the optimizer.
    clip_norm: largest norm of one tensor's gradient on one rank, before it is accumulated; None does not
        clip. For a bound G that is right on one node use G * N ** -0.5 with N ranks.

    Raises ConfigurationError, naming the field, its value and what is allowed.
    """

    algorithm: ClassVar[str]

    density: float = 0.01
    min_elements: int = 10_000
    value_dtype: ValueDtype = "float32"
    warmup: DensityWarmup | None = None
    error_feedback: bool = True
    residual_dtype: ResidualDtype = "float32"
    momentum: MomentumCorrection | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        dtypes = get_args(ValueDtype)
        require(is_fraction(self.density), self, "density", "a number in (0, 1]")
        require(is_count(self.min_elements, 0), self, "min_elements", "an integer of at least 0")
        require(self.value_dtype in dtypes, self, "value_dtype", f"one of {', '.join(dtypes)}")
        require(isinstance(self.warmup, DensityWarmup | None), self, "warmup", "a DensityWarmup or None")
        require(isinstance(self.error_feedback, bool), self, "error_feedback", "True or False")
        residual_dtypes = get_args(ResidualDtype)
        known = self.residual_dtype in residual_dtypes
        require(known, self, "residual_dtype", f"one of {', '.join(residual_dtypes)}")
        corrects = isinstance(self.momentum, MomentumCorrection | None)
        require(corrects, self, "momentum", "a MomentumCorrection or None")
        clips = self.clip_norm is None or is_positive(self.clip_norm)
        require(clips, self, "clip_norm", "a positive number or None")
        if self.warmup is not None and self.warmup.start < self.density:
            raise not_allowed(self, "warmup", f"a warm-up that starts at {self.density} (density) or above")
        if self.density >= _HIGH_DENSITY:
            warn_caller(
                f"Compression.{self.algorithm}: density={self.density!r} sends {100 * self.density:g} % of "
                "all entries, which seldom pays. A density is a fraction: 1 % is 0.01. If it is "
                'meant: warnings.filterwarnings("ignore", category=gradsieve.HighDensityWarning)',
                HighDensityWarning,
            )

    def compresses(self, name: str, elements: int) -> bool:  # noqa: ARG002 - overrides look at the name
        """Return whether a tensor of that name and size is compressed; else it is sent dense."""
        return elements >= self.min_elements

    def compress(self, tensor: Any) -> NoReturn:  # noqa: ARG002 - Horovod's call
        """Raise ConfigurationError: what Horovod calls when it is handed these settings as a compressor."""
        raise ConfigurationError(
            f"compression= was given gradsieve.Compression.{self.algorithm}(...), which holds settings and "
            f"exchanges nothing: hand Horovod gradsieve_hvd.Compression.{self.algorithm}(...), which takes "
            "the same ones"
        )

    @abstractmethod
    def selector(self) -> Selector:
        """Return the rule that chooses entries."""

    def policy(self, steering: Steering | None = None) -> Policy:
        """Return a new policy, for one optimizer: the rule's own, under what ``steering`` plans, after the
        warm-up.
        """
        own = self._own_policy()
        if steering is not None:
            own = BoundedPolicy(own, self.density, steering)
        return own if self.warmup is None else WarmupPolicy(own, self.warmup)

    def _own_policy(self) -> Policy:
        return FixedPolicy(self.density)

    def feedback(self, elements: int, device: torch.device | str) -> ErrorFeedback:
        """Return a new error feedback for one tensor: clipping, then momentum, then the residual."""
        feedback: ErrorFeedback = NoResidual()
        if self.error_feedback:
            kind = Residual if self.residual_dtype == "float32" else RoundedResidual
            feedback = kind(elements, device)
        if self.momentum is not None:
            feedback = MomentumFeedback(feedback, self.momentum, elements, device)
        if self.clip_norm is not None:
            feedback = ClippedFeedback(feedback, self.clip_norm)
        return feedback

    def describe(self) -> dict[str, Any]:
        """Return all settings as plain JSON values: what ranks compare when they start, and reports print.

        Fields that take no part in comparisons (objects of one process) are left out.
        """
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.compare}
        return {"algorithm": self.algorithm, **{key: _plain(value) for key, value in settings.items()}}


def require(holds: bool, config: CompressionConfig, field: str, allowed: str) -> None:
    """Raise ConfigurationError unless ``holds``."""
    if not holds:
        raise not_allowed(config, field, allowed)


def not_allowed(config: CompressionConfig, field: str, allowed: str) -> ConfigurationError:
    """Return the error for a field's value."""
    setting = f"Compression.{config.algorithm}: {field}={getattr(config, field)!r}"
    return ConfigurationError(f"{setting} is not allowed; it must be {allowed}")


def require_band(band: object, config: CompressionConfig) -> None:
    """Raise ConfigurationError unless ``band`` is one: multiples of k around 1."""
    allowed = "two numbers, the first in (0, 1] and the second 1 or more"
    require(_are_two_numbers(band) and 0 < band[0] <= 1 <= band[1] < math.inf, config, "band", allowed)  # type: ignore[index]


def require_bounds(bounds: object, config: CompressionConfig) -> None:
    """Raise ConfigurationError unless ``bounds`` are a lowest and a highest density, around ``density``."""
    allowed = (
        f"two numbers in (0, 1], the first at most {config.density} (density) and the second at least that"
    )
    holds = _are_two_numbers(bounds) and 0 < bounds[0] <= config.density <= bounds[1] <= 1  # type: ignore[index]
    require(holds, config, "bounds", allowed)


def is_positive(value: object) -> bool:
    """Return whether ``value`` is a positive, finite number."""
    return is_number(value) and 0 < value < math.inf


def _are_two_numbers(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value

"""What users set for local updates."""

from __future__ import annotations

import dataclasses
from typing import Any

import gradsieve
from gradsieve import CompressionConfig
from gradsieve.config.base import is_positive
from gradsieve.density import is_count, is_fraction
from gradsieve.errors import ConfigurationError
from gradsieve.policies import FixedPolicy
from gradsieve_hvd.engine.settings import Settings

CHUNK, PER_CHUNK = 4096, 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalRules:
    """How local updates become common ones.

    steps: H, optimizer steps of a rank from one exchange to the next. decay: β, what is left of a residual
        when the next round begins. learning_rate: α of the step that all ranks make together.
    """

    steps: int
    decay: float
    learning_rate: float

    def __post_init__(self) -> None:
        _require(is_count(self.steps, 1), "local_steps", self.steps, "an integer of at least 1")
        _require(is_fraction(self.decay), "residual_decay", self.decay, "a number in (0, 1]")
        _require(is_positive(self.learning_rate), "outer_learning_rate", self.learning_rate, "positive")

    def describe(self) -> dict[str, Any]:
        """Return them under the names of the arguments, JSON-able."""
        return {
            "local_steps": self.steps,
            "residual_decay": self.decay,
            "outer_learning_rate": self.learning_rate,
        }


def usual_settings() -> Settings:
    """Return what is sent if users do not say: 64 of every 4 096 elements, with 2-bit values.

    Tensors smaller than a chunk travel whole, as they have few elements **(r)**.
    """
    return Settings(
        config=gradsieve.Compression.group_topk(
            density=PER_CHUNK / CHUNK, group_size=CHUNK, value_dtype="int2", min_elements=CHUNK
        )
    )


def require_supported(settings: Settings) -> None:
    """Check that settings mean something for differences of weights.

    Raises:
        ConfigurationError: one of them does not.
    """
    config = settings.config
    wrong = {
        "grad_scaler": settings.grad_scaler is not None,
        "clip_global_norm": settings.clip_global_norm is not None,
        "nonfinite='propagate'": settings.nonfinite == "propagate" and settings.grad_scaler is None,
        "momentum": config.momentum is not None,
        "clip_norm": config.clip_norm is not None,
        "warmup": config.warmup is not None,
        "error_feedback=False": not config.error_feedback,
        "residual_dtype": config.residual_dtype != "float32",
        f"Compression.{config.algorithm}": not _is_fixed(config),
    }
    for name, found in wrong.items():
        if found:
            raise ConfigurationError(
                f"mode='local' cannot be used with {name}: gradients stay on their rank, and what is "
                "exchanged are differences of weights after several steps. Take topk, group_topk, laplace or "
                "sampled; clip gradients and unscale losses before step(), as on one rank."
            )


def _is_fixed(config: CompressionConfig) -> bool:
    return isinstance(config.policy(), FixedPolicy)


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name}={value!r} is not allowed; it must be {allowed}")

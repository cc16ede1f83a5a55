"""What users set for one optimizer's gradients, whichever front door they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import gradsieve
from gradsieve.config.base import is_positive
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError

NonFinite = Literal["raise", "propagate"]


class GradScaler(Protocol):
    """What gradsieve uses of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """The factor that the loss, and so the gradients, were multiplied with."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Settings:
    """Settings only: what changes while training belongs to the optimizer, so several may share them.

    Attributes:
        config: which gradients, how much of them, in which encoding.
        nonfinite: ``"raise"``: `NonFiniteGradient` on every rank; ``"propagate"``: every rank gets NaN, for a
            loss scaler that skips the step.
        grad_scaler: the scaler whose factor is in the gradients; residuals are kept without it, so a changing
            factor does not matter.
        timeout_seconds: how long an exchange may take before it is an error. Include the longest time that
            one rank keeps the others waiting (an evaluation on rank 0).
        check_weights_every: exchanges of gradients from one comparison of the ranks' weights to the next; see
            `gradsieve_hvd.engine.weights_check`. None or 0: never.
        clip_global_norm: the largest norm of the gradient of all tensors together, averaged (or summed) over
            the ranks, in unscaled units; see `gradsieve.global_clipping` **(r)**. None does not clip.
    """

    config: gradsieve.CompressionConfig
    nonfinite: NonFinite = "raise"
    grad_scaler: GradScaler | None = None
    timeout_seconds: float = 300.0
    check_weights_every: int | None = 500
    clip_global_norm: float | None = None

    def __post_init__(self) -> None:
        if self.nonfinite not in ("raise", "propagate"):
            raise ConfigurationError(f"nonfinite={self.nonfinite!r}: expected 'raise' or 'propagate'")
        if self.grad_scaler is not None and self.nonfinite == "raise":
            raise ConfigurationError(
                "nonfinite='raise' contradicts grad_scaler=: a loss scaler overflows on purpose. Leave "
                "nonfinite out."
            )
        if not self.timeout_seconds > 0:
            raise ConfigurationError(
                f"timeout_seconds={self.timeout_seconds!r}: expected a positive number of seconds"
            )
        if self.clip_global_norm is not None and not is_positive(self.clip_global_norm):
            raise ConfigurationError(
                f"clip_global_norm={self.clip_global_norm!r}: expected a positive number, or None"
            )
        if self.check_weights_every is not None and not is_count(self.check_weights_every, 0):
            raise ConfigurationError(
                f"check_weights_every={self.check_weights_every!r}: expected a number of steps, or None"
            )

    def loss_scale(self) -> float:
        """The factor in the gradients of the current backward pass."""
        return 1.0 if self.grad_scaler is None else float(self.grad_scaler.get_scale())

    def describe(self) -> dict[str, Any]:
        """JSON-able settings that must be equal on all ranks."""
        return {
            **self.config.describe(),
            "nonfinite": self.nonfinite,
            "grad_scaler": self.grad_scaler is not None,
            "check_weights_every": self.check_weights_every or None,
            "clip_global_norm": self.clip_global_norm,
            "gradsieve": gradsieve.__version__,
        }

"""What a training loop tells of itself, for the job's coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsFloat

from gradsieve.errors import ConfigurationError

_LARGEST = 1e18  # that coordinators believe


@dataclass(slots=True)
class _Reported:
    loss: float | None = None


_reported = _Reported()


def report(*, loss: SupportsFloat) -> None:
    """Tell the job's coordinator the loss of the step; rank 0's is shown, and nothing is exchanged.

    It rides on the next telemetry sample, every two seconds or so, and becomes the metric ``gradsieve_loss``.
    Without a coordinator nothing comes of it. A loss that is not finite is left out of the sample.

    Args:
        loss: a number, or a tensor of one element; one on a GPU is waited for.

    Raises:
        ConfigurationError: it is no number.
    """
    if isinstance(loss, str | bytes | bool):
        raise ConfigurationError(f"report(loss={loss!r}): expected a number or a tensor of one element"[:400])
    try:
        # A tensor that gradients go through warns when it is read.
        value = float(loss.detach() if hasattr(loss, "detach") else loss)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(loss).__name__
        raise ConfigurationError(
            f"report(loss=...): expected a number or a tensor of one element, not this {kind}: {error}"[:400]
        ) from error
    _reported.loss = value if math.isfinite(value) and abs(value) <= _LARGEST else None


def reported_loss() -> float | None:
    """Return the loss that was reported last; None for none, or one that is no finite number."""
    return _reported.loss

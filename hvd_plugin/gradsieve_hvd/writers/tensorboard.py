"""Statistics as curves in TensorBoard."""

from __future__ import annotations

from typing import Any

from gradsieve_hvd.optimizer.stats import OptimizerStats


class TensorBoardWriter:
    """Adds scalars below ``gradsieve/``; those of a bucket below its name.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or what has its ``add_scalar``; closing it is its
            owner's.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, stats: OptimizerStats) -> None:
        """Add a round at its step."""
        for name, value in stats.figures().items():
            self._writer.add_scalar(f"gradsieve/{name}", value, stats.step)
        for each in stats.buckets:
            below = f"gradsieve/{each.name.replace(' ', '_')}"
            self._writer.add_scalar(f"{below}/density", each.density, stats.step)
            self._writer.add_scalar(f"{below}/sent_bytes", each.sent_bytes, stats.step)
            self._writer.add_scalar(f"{below}/exchange_seconds", each.exchange_seconds, stats.step)
            if each.kept_energy is not None:
                self._writer.add_scalar(f"{below}/kept_energy", each.kept_energy, stats.step)

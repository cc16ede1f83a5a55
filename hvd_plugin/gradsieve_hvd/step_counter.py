"""Bytes and densities of the last step, as they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """One optimizer step of one rank."""

    payload_bytes: int = 0  # compressed payloads this rank sent
    received_bytes: int = 0  # compressed payloads of all ranks, this one's own included
    dense_bytes: int = 0  # gradients below the size threshold, as handed to Horovod's all-reduce
    kept: int = 0  # entries this rank selected
    elements: int = 0  # elements of its compressed tensors
    gradient_bytes: int = 0  # all gradients, as they would be handed to Horovod without compression
    waiting: Mapping[str, float] = field(default_factory=dict)
    """L2 norm of the residual of each frozen parameter (``requires_grad=False``), by name."""

    @property
    def density(self) -> float:
        """Kept over all, of the compressed tensors."""
        return self.kept / self.elements if self.elements else 0.0


class StepCounter:
    """Counts one step while it is under way; keeps the last whole one."""

    def __init__(self) -> None:
        self.last = StepStatistics()
        self._current = StepStatistics()

    def add_payload(self, payload: Tensor, kept: int, elements: int, gradient_bytes: int) -> None:
        """Count a compressed tensor of ``elements`` in ``gradient_bytes``, ``kept`` of which were sent."""
        now = self._current
        self._current = replace(
            now,
            payload_bytes=now.payload_bytes + payload.numel(),
            kept=now.kept + kept,
            elements=now.elements + elements,
            gradient_bytes=now.gradient_bytes + gradient_bytes,
        )

    def add_received(self, gathered: Tensor) -> None:
        """Count what all ranks sent of one tensor."""
        self._current = replace(self._current, received_bytes=self._current.received_bytes + gathered.numel())

    def add_dense(self, gradient: Tensor) -> None:
        """Count a tensor that went through Horovod's all-reduce."""
        now, size = self._current, gradient.numel() * gradient.element_size()
        self._current = replace(
            now, dense_bytes=now.dense_bytes + size, gradient_bytes=now.gradient_bytes + size
        )

    def close_step(self) -> None:
        """The optimizer has stepped."""
        self.last, self._current = self._current, StepStatistics()

    def discard_step(self) -> None:
        """The step was skipped: its bytes were sent, but it is not a step."""
        self._current = StepStatistics()

"""Bytes and densities of the last step, as they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .observer import SilentObserver, Submitted


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """One optimizer step of one rank."""

    payload_bytes: int = 0  # compressed payloads this rank sent
    received_bytes: int = 0  # compressed payloads of all ranks, this one's own included
    dense_bytes: int = 0  # gradients below the size threshold, which travel whole
    kept: int = 0  # entries this rank selected
    elements: int = 0  # elements of its compressed tensors
    gradient_bytes: int = 0  # all gradients, as they would travel without compression
    waiting: Mapping[str, float] = field(default_factory=dict)
    """L2 norm of the residual of each frozen parameter (``requires_grad=False``), by name."""

    @property
    def density(self) -> float:
        """Kept over all, of the compressed tensors."""
        return self.kept / self.elements if self.elements else 0.0


class StepCounter(SilentObserver):
    """Counts one step while it is under way; keeps the last whole one."""

    def __init__(self) -> None:
        self.last = StepStatistics()
        self._forget()

    def _forget(self) -> None:
        self._payload_bytes = self._received_bytes = self._dense_bytes = 0
        self._kept = self._elements = self._gradient_bytes = 0

    def submitted(self, gradient: Submitted) -> None:
        """Count what this rank sends of a gradient."""
        if gradient.payload_bytes is None:
            self._dense_bytes += gradient.gradient_bytes
        else:
            self._payload_bytes += gradient.payload_bytes
        self._kept += gradient.kept
        self._elements += gradient.elements
        self._gradient_bytes += gradient.gradient_bytes

    def arrived(self, name: str, size: int) -> None:  # noqa: ARG002 - see StepObserver
        """Count what all ranks sent of a compressed tensor."""
        self._received_bytes += size

    def committed(self) -> None:
        """The optimizer has stepped."""
        self.last = StepStatistics(
            self._payload_bytes,
            self._received_bytes,
            self._dense_bytes,
            self._kept,
            self._elements,
            self._gradient_bytes,
        )
        self._forget()

    def rolled_back(self) -> None:
        """The step was skipped: its bytes were sent, but it is not a step."""
        self._forget()

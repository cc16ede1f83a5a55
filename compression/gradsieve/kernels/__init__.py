"""What computes the accumulated gradient and looks at it, chosen by device; all give the same bits."""

from __future__ import annotations

from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.kernels.cpu import CpuSum
from gradsieve.kernels.reference import ReferenceSum

__all__ = ["accumulate", "as_accumulated"]


def accumulate(gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> Accumulated:
    """Return ``gradient * scale + residual``, made in ``out``; ``residual`` and ``out`` are flat fp32 [N].

    ``gradient`` may have any shape, strides and floating-point dtype; only ``out`` is mutated, at the latest
    when the result is asked for its tensor. Product and sum are rounded one after the other.
    """
    kernel = CpuSum if out.is_cpu else ReferenceSum
    return kernel.of(gradient, scale, residual, out)


def as_accumulated(numbers: Tensor | Accumulated) -> Accumulated:
    """Return fp32 [N], flat and contiguous, as something that selection rules can ask; not mutated."""
    if not isinstance(numbers, Tensor):
        return numbers
    return CpuSum(numbers) if numbers.is_cpu else ReferenceSum(numbers)

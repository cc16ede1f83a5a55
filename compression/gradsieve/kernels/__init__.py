"""What computes the accumulated gradient and looks at it, chosen by device; all give the same bits."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from gradsieve.accumulated import Accumulated
from gradsieve.kernels import numba_kernels
from gradsieve.kernels.cpu import CpuSum
from gradsieve.kernels.parts import parallel_map, spans
from gradsieve.kernels.reference import ReferenceSum
from gradsieve.kernels.scratch import as_flat

__all__ = ["Kernel", "accumulate", "add_entries", "add_scaled", "as_accumulated", "kernel_for"]


class Kernel(Protocol):
    """Makes accumulated gradients."""

    def __call__(self, accumulated: Tensor) -> Accumulated:
        """Return fp32 [N], flat and contiguous, as an accumulated gradient; not mutated."""
        ...

    def of(self, gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> Accumulated:
        """Return ``gradient * scale + residual``; see :func:`accumulate`."""
        ...


def add_entries(total: Tensor, indices: Tensor, values: Tensor, alpha: float = 1.0) -> None:
    """Add ``alpha * values`` (fp32 [K]) at ``indices`` (int64 [K]) of ``total`` (fp32 [N]), in place; all on
    one device. Product and sum are rounded separately.
    """
    if total.is_cpu and total.is_contiguous():
        entries = indices.contiguous().numpy(), values.contiguous().numpy()
        numba_kernels.add_at(total.numpy(), *entries, alpha)
    else:
        total.index_add_(0, indices, values, alpha=alpha)


def add_scaled(first: Tensor, factor: float, second: Tensor, scale: float, out: Tensor) -> Tensor:
    """Return ``first * factor + second * scale``, made in ``out``; ``first`` and ``out`` are flat [N] of one
    floating-point dtype.

    ``second`` may have any shape, strides and floating-point dtype; only ``out`` is mutated. Products and sum
    are rounded one after the other.
    """
    if out.is_cpu and out.dtype == torch.float32:
        terms = (first.numpy(), factor, as_flat(second, "gradient").numpy(), scale, out.numpy())
        parallel_map(lambda part: numba_kernels.add_scaled(*terms, *part), spans(out.numel()))
        return out
    out.view(second.shape).copy_(second)
    return out.mul_(scale).add_(first * factor)


def accumulate(gradient: Tensor, scale: float, residual: Tensor, out: Tensor) -> Accumulated:
    """Return ``gradient * scale + residual``, made in ``out``; ``residual`` and ``out`` are flat fp32 [N].

    ``gradient`` may have any shape, strides and floating-point dtype; only ``out`` is mutated, at the latest
    when the result is asked for its tensor. Product and sum are rounded one after the other.
    """
    return kernel_for(out.device).of(gradient, scale, residual, out)


def as_accumulated(numbers: Tensor | Accumulated) -> Accumulated:
    """Return fp32 [N], flat and contiguous, as something that selection rules can ask; not mutated."""
    if not isinstance(numbers, Tensor):
        return numbers
    return kernel_for(numbers.device)(numbers)


def kernel_for(device: torch.device) -> Kernel:
    """Return compiled loops for CPUs, triton kernels for GPUs if triton is installed, else the reference."""
    if device.type == "cpu":
        return CpuSum
    return _for_gpus() if device.type == "cuda" else ReferenceSum


@cache
def _for_gpus() -> Kernel:
    try:
        from gradsieve.kernels.gpu import GpuSum  # late: without a GPU nobody should wait for this import
    except ImportError:
        return ReferenceSum
    return GpuSum

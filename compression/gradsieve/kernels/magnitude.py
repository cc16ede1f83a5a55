"""Magnitudes as integers.

The bit pattern of a non-negative IEEE float, read as an integer, is ordered like the float. Comparing and
counting patterns gives the same answer for every order of evaluation, thread count, SIMD width and device,
ignores flush-to-zero settings, and makes bisection end after at most 31 steps. Infinity and NaN lie above all
finite numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from gradsieve.kernels import numba_kernels

SIGN_OFF = 0x7FFFFFFF
TOP = 1 << 31  # above every pattern
_INFINITY = 0x7F800000
_MANY = 1 << 21
_LARGEST_FINITE = 3.4028234663852886e38


def bits_of(magnitude: float) -> int:
    """Return the pattern of a magnitude, rounded to fp32 and to its finite range."""
    return int(struct.unpack("<I", struct.pack("<f", min(abs(magnitude), _LARGEST_FINITE)))[0])


def magnitude_of(magnitude_bits: int) -> float:
    """Return the fp32 magnitude of a pattern."""
    return float(struct.unpack("<f", struct.pack("<I", magnitude_bits))[0])


def fixed_point_mean(largest: int, elements: int, total_of: Callable[[float], int]) -> float:
    """Return a mean magnitude that does not depend on the order of summation; infinity if ``largest`` is.

    1. Take the exponent e of the largest magnitude, whose pattern is ``largest``.
    2. Sum |a| in units of 2^(e-30), truncated to integers: ``total_of(2^(30-e))``. Integers add up alike in
       any order, and 2^32 elements fit into 63 bits.
    """
    if largest >= _INFINITY:
        return math.inf
    exponent = math.frexp(magnitude_of(largest))[1]
    scale = math.ldexp(1.0, 30 - exponent)
    return total_of(scale) / scale / elements


def largest_magnitude(values: torch.Tensor) -> float:
    """Return the largest magnitude among fp32 [K] on the CPU; 0 if there are none."""
    return magnitude_of(_largest_bits(values))


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element of a floating-point tensor is NaN or infinite.

    NaN and infinity survive every sum, so a finite sum, one pass, is proof. Finite numbers can overflow in a
    sum: only then is every element looked at. Of less than two million elements on a CPU the largest pattern
    tells.
    """
    count = tensor.numel()
    if count < _MANY and tensor.is_cpu and tensor.dtype == torch.float32 and tensor.is_contiguous():
        return _largest_bits(tensor.detach().view(-1)) < _INFINITY
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _largest_bits(values: Tensor) -> int:
    """Return the largest pattern among fp32 [K] on the CPU, 0 if there are none; without torch, whose threads
    would go on spinning beside what comes next.
    """
    return numba_kernels.largest_bits(values.numpy(), 0, values.numel())

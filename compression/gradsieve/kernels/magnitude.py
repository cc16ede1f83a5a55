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

import numpy as np
import torch
from torch import Tensor

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
    numbers = values.numpy()  # torch's threads would go on spinning beside what comes next
    return float(max(numbers.max(), -numbers.min())) if numbers.size else 0.0


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element of a floating-point tensor is NaN or infinite.

    NaN and infinity survive every sum, so a finite sum, one pass, is proof. Finite numbers can overflow in a
    sum: only then is every element looked at. Of a selection on a CPU that is done without torch: its threads
    would go on spinning afterwards, on the cores that ours need for what comes next.
    """
    if tensor.is_cpu and tensor.dtype == torch.float32 and tensor.numel() < _MANY:
        return bool(np.isfinite(tensor.detach().numpy()).all())
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())

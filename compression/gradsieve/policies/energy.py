"""How much of a gradient's energy a selection keeps."""

from __future__ import annotations

import math

from torch import Tensor

_CHUNK = 1 << 18


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of a tensor of any shape and floating-point dtype; NaN or infinity if it
    holds one.

    Squares are summed in double precision, by chunks in the order of the elements: fp32 values cannot
    overflow there, and the only freedom left to thread counts is the last bits of a chunk's double sum.
    Copies a tensor that is not contiguous, otherwise a chunk at a time.
    """
    flat = tensor.detach().reshape(-1)
    chunks = (flat[start : start + _CHUNK] for start in range(0, flat.numel(), _CHUNK))
    return math.sqrt(sum(float(chunk.double().square().sum()) for chunk in chunks))


def kept_energy_gain(values: Tensor, accumulated: Tensor) -> float | None:
    """Return q = norm(values) / norm(accumulated) in [0, 1]; None if all is zero (method A, step 4)."""
    everything = norm(accumulated)
    return min(norm(values) / everything, 1.0) if everything else None

"""Compiled loops of low-rank factors: the same bits on every processor, which BLAS does not promise.

Columns of a factor lie one after the other: a factor of rank R of a matrix [N, M] is fp32 [R, N] or [R, M].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.kernels.jit import compiled

Array = Any  # numpy arrays to the caller; the signatures say which
_NEARLY_NOTHING = 1e-6  # of a column's norm; rounding leaves some 1e-7 of one that depends on the others


@compiled("float64(float32[::1], float32[::1])")
def _dot(left: Array, right: Array) -> float:
    total = 0.0
    for index in range(left.size):
        total += np.float64(left[index]) * np.float64(right[index])
    return total


@compiled("void(float32[:, ::1])")
def orthogonalise(columns: Array) -> None:
    """Make columns (fp32 [R, N], in place) orthonormal, or zero where one depends on those before it.

    Gram-Schmidt, each projection taken off twice, which is enough for fp32; products are summed in fp64.
    """
    for number in range(columns.shape[0]):
        column = columns[number]
        before = np.sqrt(_dot(column, column))
        for _ in range(2):
            for other in range(number):
                share = np.float32(_dot(columns[other], column))
                for index in range(column.size):
                    column[index] -= share * columns[other, index]
        norm = np.sqrt(_dot(column, column))
        keeps = norm > _NEARLY_NOTHING * before
        for index in range(column.size):
            column[index] = np.float32(column[index] / norm) if keeps else np.float32(0)


@compiled("void(float32[:, ::1], float32[:, ::1], float32[::1])")
def multiply(left: Array, right: Array, out: Array) -> None:
    """Write the product of two factors, fp32 [R, N] and [R, M], to ``out``: fp32 [N * M], row by row."""
    columns = right.shape[1]
    for row in range(left.shape[1]):
        start = row * columns
        for column in range(columns):
            out[start + column] = left[0, row] * right[0, column]
        for number in range(1, left.shape[0]):
            factor = left[number, row]
            for column in range(columns):
                out[start + column] += factor * right[number, column]

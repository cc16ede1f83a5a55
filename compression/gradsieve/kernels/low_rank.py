"""Compiled loops of low-rank factors: the same bits on every processor, which BLAS does not promise.

Columns of a factor lie one after the other: a factor of rank R of a matrix [N, M] is fp32 [R, N] or [R, M].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.kernels.jit import compiled

Array = Any  # numpy arrays to the caller; the signatures say which
_SIGN_OFF, _INFINITY = 0x7FFFFFFF, 0x7F800000  # see `gradsieve.kernels.magnitude`
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


@compiled("boolean(float32[:, ::1], float32[:, ::1], float32[::1], float32, float32, float32[::1])")
def approximate(left: Array, right: Array, given: Array, ranks: float, factor: float, product: Array) -> bool:
    """Take a rank's share of the product of two factors off what this rank has given, and write ``factor``
    times the product; one pass over memory, row by row, as a row stays in the cache. Returns whether the
    product is finite, before it is multiplied.

    Args:
        left: fp32 [R, N].
        right: fp32 [R, M].
        given: fp32 [N * M], overwritten with what is missing: ``given`` - product / ``ranks``.
        ranks: that share the product.
        factor: of what is written.
        product: fp32 [N * M], overwritten with ``factor`` * product.
    """
    columns = right.shape[1]
    patterns = product.view(np.int32)
    finite = True
    for row in range(left.shape[1]):
        start, stop = row * columns, (row + 1) * columns
        # Slices, and a loop for each purpose, are what the compiler turns into vector instructions.
        out, own = product[start:stop], given[start:stop]
        for column in range(columns):
            out[column] = left[0, row] * right[0, column]
        for number in range(1, left.shape[0]):
            share = left[number, row]
            for column in range(columns):
                out[column] += share * right[number, column]
        bits, largest = patterns[start:stop], np.int32(0)
        for column in range(columns):
            largest = max(largest, bits[column] & np.int32(_SIGN_OFF))
        finite &= largest < np.int32(_INFINITY)
        for column in range(columns):
            own[column] -= out[column] / ranks
            out[column] *= factor
    return finite

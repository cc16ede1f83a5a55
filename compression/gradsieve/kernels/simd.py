"""Thirty-two elements at a time: vector operations that numba's language cannot express.

They are written in LLVM's own language, which turns them into whatever the processor has (SSE, AVX2, AVX-512,
NEON), so that no C++ compiler is needed. By hand because LLVM does not vectorise a loop that adds and lists:
with these a fused pass over 25 million elements takes 12 ms where the same loop in plain numba takes 27 (AMD
EPYC with AVX2, one thread; adding alone takes 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 32

_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_MASKS = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
_FLOATS_PER_LINE = 16
_FLOATS = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT, LANES)
_SIGN_OFF = ir.Constant(_INTS, [0x7FFFFFFF] * LANES)


@intrinsic
def reaching(context: Any, numbers: Any, start: Any, upper: Any, lower: Any) -> Any:
    """Return which of ``numbers[start:start + 32]`` reach ``upper``, and which ``lower``.

    A uint64: bit i stands for the i-th number reaching ``upper``, bit 32 + i for it reaching ``lower``.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_at(context, builder, signature, args, 0, args[1]), align=4)
        return _masks(builder, loaded, args[2], args[3])

    return types.uint64(numbers, types.int64, types.int32, types.int32), generate


@intrinsic
def sum_reaching(
    context: Any,
    gradient: Any,
    scale: Any,
    residual: Any,
    out: Any,
    start: Any,
    upper: Any,
    lower: Any,
    left: Any,
) -> Any:
    """Store ``gradient * scale + residual`` in ``out`` from ``start`` on; return what :func:`reaching` would.

    What exceeds the pattern ``left`` is stored as 0, but returned as what it is. Product and sum are rounded
    one after the other. The store goes past the caches: reading ``out`` first would be a quarter of the
    pass's traffic. It must lie at a multiple of 32 bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total = _sum(context, builder, signature, args, args[4])
        exceeds = builder.icmp_signed(">", _bits(builder, total), _in_all_lanes(builder, _INTS, args[7]))
        rest = builder.select(exceeds, ir.Constant(_FLOATS, [0.0] * LANES), total)
        store = builder.store(rest, _at(context, builder, signature, args, 3, args[4]), align=LANES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INT, 1)]))
        return _masks(builder, total, args[5], args[6])

    arguments = (gradient, types.float32, residual, out, types.int64, types.int32, types.int32, types.int32)
    return types.uint64(*arguments), generate


@intrinsic
def find_peaks(context: Any, numbers: Any, start: Any, stride: Any, count: Any, peaks: Any, lane: Any) -> Any:
    """Set the 32 ``peaks`` (int32) from ``lane`` on to the largest patterns of ``count`` vectors of numbers.

    Vectors start ``stride`` elements apart, the first at ``start``.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def numbers_at(index: Any) -> Any:
            return builder.load(_at(context, builder, signature, args, 0, index), align=4)

        _find_peaks(context, builder, signature.args[4], args[1:], numbers_at)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, types.int64, peaks, types.int64), generate


@intrinsic
def find_sum_peaks(
    context: Any,
    gradient: Any,
    scale: Any,
    residual: Any,
    start: Any,
    stride: Any,
    count: Any,
    peaks: Any,
    lane: Any,
) -> Any:
    """Do with ``gradient * scale + residual`` what :func:`find_peaks` does with numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def numbers_at(index: Any) -> Any:
            return _sum(context, builder, signature, args, index)

        _find_peaks(context, builder, signature.args[6], args[3:], numbers_at)
        return context.get_dummy_value()

    indices = (types.int64, types.int64, types.int64)
    return types.void(gradient, types.float32, residual, *indices, peaks, types.int64), generate


@intrinsic
def peaks_reaching(context: Any, peaks: Any, magnitude_bits: Any) -> Any:
    """Return how many of the first 32 ``peaks`` (int32) reach ``magnitude_bits``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        loaded = builder.load(builder.bitcast(data, _INTS.as_pointer()), align=4)
        reached = builder.icmp_signed(">=", loaded, _in_all_lanes(builder, _INTS, args[1]))
        return builder.ctpop(builder.bitcast(reached, _INT))

    return types.int32(peaks, types.int32), generate


@intrinsic
def fetch(context: Any, numbers: Any, start: Any) -> Any:
    """Ask for ``numbers[start:start + 32]`` to be brought into the nearest cache; any ``start`` will do."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        for line in range(0, LANES, _FLOATS_PER_LINE):
            index = builder.add(args[1], ir.Constant(_MASKS, line))
            pointer = builder.bitcast(builder.gep(data, [index]), _BYTES)
            builder.call(_prefetch(builder), [pointer, *(ir.Constant(_INT, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(numbers, types.int64), generate


@intrinsic
def lowest_bit(context: Any, mask: Any) -> Any:
    """Return the position of the lowest bit set in a uint32 that is not zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


@intrinsic
def bits_set(context: Any, mask: Any) -> Any:
    """Return how many bits of a uint32 are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint32(types.uint32), generate


def _prefetch(builder: Any) -> Any:
    """Return LLVM's prefetch: an address, 0 for reading, 3 for the nearest cache, 1 for data."""
    shape = ir.FunctionType(ir.VoidType(), [_BYTES, _INT, _INT, _INT])
    return cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0i8")


def _at(context: Any, builder: Any, signature: Any, args: Any, number: int, start: Any) -> Any:
    """Return a pointer to the lanes of array argument ``number`` that begin at element ``start``."""
    array = context.make_array(signature.args[number])(context, builder, args[number])
    return builder.bitcast(builder.gep(array.data, [start]), _FLOATS.as_pointer())


def _sum(context: Any, builder: Any, signature: Any, args: Any, start: Any) -> Any:
    """Return ``gradient * scale + residual``, which are arguments 0 to 2."""
    gradient = builder.load(_at(context, builder, signature, args, 0, start), align=4)
    residual = builder.load(_at(context, builder, signature, args, 2, start), align=4)
    product = builder.fmul(gradient, _in_all_lanes(builder, _FLOATS, args[1]))
    return builder.fadd(residual, product)


def _find_peaks(context: Any, builder: Any, array: Any, args: Any, numbers_at: Callable[[Any], Any]) -> None:
    """Generate the loop over vectors; the peaks stay in registers until its end."""
    start, stride, count, peaks, lane = args
    highest = cgutils.alloca_once_value(builder, ir.Constant(_INTS, [0] * LANES))
    with cgutils.for_range(builder, count) as loop:
        index = builder.add(start, builder.mul(loop.index, stride))
        bits, before = _bits(builder, numbers_at(index)), builder.load(highest)
        higher = builder.icmp_signed(">", bits, before)
        builder.store(builder.select(higher, bits, before), highest)
    data = context.make_array(array)(context, builder, peaks).data
    pointer = builder.bitcast(builder.gep(data, [lane]), _INTS.as_pointer())
    builder.store(builder.load(highest), pointer, align=4)


def _masks(builder: Any, numbers: Any, upper: Any, lower: Any) -> Any:
    bits = _bits(builder, numbers)
    upper_mask, lower_mask = (
        builder.zext(
            builder.bitcast(
                builder.icmp_signed(">=", bits, _in_all_lanes(builder, _INTS, magnitude_bits)), _INT
            ),
            _MASKS,
        )
        for magnitude_bits in (upper, lower)
    )
    return builder.or_(upper_mask, builder.shl(lower_mask, ir.Constant(_MASKS, LANES)))


def _bits(builder: Any, numbers: Any) -> Any:
    return builder.and_(builder.bitcast(numbers, _INTS), _SIGN_OFF)


def _in_all_lanes(builder: Any, vector: ir.VectorType, scalar: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))

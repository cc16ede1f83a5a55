"""Number formats of the values, as they are or Golomb-Rice coded, whichever is smaller.

Every format has a sign, a number (exponent or level) and a mantissa. The exponents of kept values differ
little, because a threshold lies below them all: counted from the smallest they are written in hardly more
than one bit, and nothing is lost. Arrays: ``codes`` uint32 [K], see :mod:`gradsieve.codec.value_loops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradsieve.codec import bits, rice
from gradsieve.codec import value_loops as loops
from gradsieve.codec.faults import unexpected
from gradsieve.codec.header import Bytes, Header, ValueCoding

ValueDtype = Literal["float32", "float16", "bfloat16", "int8", "int4", "int2"]
Words = npt.NDArray[np.uint32]
FIELDS = {  # bits of exponent or level, and of the mantissa
    ValueCoding.FLOAT32: (8, 23),
    ValueCoding.FLOAT16: (5, 10),
    ValueCoding.BFLOAT16: (8, 7),
    ValueCoding.INT8: (7, 0),
    ValueCoding.INT4: (3, 0),
    ValueCoding.INT2: (1, 0),
}
_NOT_FINITE = ("values", "NaN or infinity", "finite numbers", "a rank that has these must refuse")


@dataclass(frozen=True, slots=True, eq=False)
class PlannedValues:
    """Rounded values and the smaller way to write them, in ``size`` bytes.

    scales: uint32 patterns, two per group of levels, else empty. numbers: what is written of each value, in
    ``width`` bits; if packed, Golomb-Rice coded with ``parameters``, exponents counted from ``base``.
    """

    scales: Words
    numbers: Words
    width: int
    packed: bool
    base: int
    parameters: Bytes
    size: int

    def write(self, out: Bytes, at: int) -> int:
        """Write the values to ``out`` from byte ``at`` on and return the byte after."""
        at = bits.pack(self.scales, 0, self.scales.size, 32, out, at)
        if not self.packed:
            return bits.pack(self.numbers, 0, self.numbers.size, self.width, out, at)
        out[at] = self.base
        return rice.write(self.numbers, self.parameters, out, at + 1)


def coding_of(value_dtype: ValueDtype) -> ValueCoding:
    """Return the wire's code for a dtype name."""
    return ValueCoding[value_dtype.upper()]


def is_floating(coding: ValueCoding) -> bool:
    """Return whether a value's code depends on nothing but the value: not so for levels within a group."""
    return coding <= ValueCoding.BFLOAT16


def raw_bytes(coding: ValueCoding, count: int) -> int:
    """Return the bytes of ``count`` values that are not packed."""
    return _scale_words(coding, count) * 4 + -(-count * _width(coding) // 8)


def sent_values(values: Tensor, value_dtype: ValueDtype) -> Tensor:
    """Return finite fp32 [K] ``values`` as a receiver will see them, bit for bit, fp32 [K], on their device.

    The input is not mutated; for "float32" it is returned itself. A magnitude beyond a half format's range
    becomes its largest finite number: the excess stays in the sender's residual and goes out with the next
    steps, whereas infinity would ruin every rank's weights.
    """
    coding = coding_of(value_dtype)
    if coding is ValueCoding.FLOAT32:
        return values
    codes, scales = _rounded(float_bits_of(values), coding)
    return torch.from_numpy(_widened(codes, scales, coding)).to(values.device)


def as_received(raw: PlannedValues, coding: ValueCoding) -> Tensor:
    """Return rounded values that are not packed as a receiver will see them, fp32 [K], CPU."""
    return torch.from_numpy(_widened(raw.numbers, raw.scales, coding))


def float_bits_of(values: Tensor) -> Words:
    """Return the bits of fp32 [K] ``values``, in their own memory where that is a CPU's and contiguous."""
    float_bits: Words = values.detach().to("cpu", torch.float32).contiguous().numpy().view(np.uint32)
    return float_bits


def pack_if_smaller(raw: PlannedValues, coding: ValueCoding) -> PlannedValues:
    """Return rounded values that are not packed (not mutated) as they are, or packed if that is smaller."""
    codes, scales = raw.numbers, raw.scales
    exponent, mantissa = FIELDS[coding]
    base = loops.smallest_exponent(codes, exponent, mantissa) if is_floating(coding) else 0
    numbers = np.empty_like(codes)
    loops.to_numbers(codes, exponent, mantissa, base, numbers)
    parameters = np.empty(-(-codes.size // rice.BLOCK), np.uint8)
    packed = 4 * scales.size + 1 + rice.plan(numbers, parameters)
    if packed < raw.size:
        return PlannedValues(scales, numbers, raw.width, True, base, parameters, packed)
    return raw


def plan_unpacked(float_bits: Words, coding: ValueCoding) -> PlannedValues:
    """Round fp32 values given by their ``float_bits`` (not mutated), to be written as they are.

    Raises PayloadError if one is not finite.
    """
    if not loops.all_finite(float_bits, *FIELDS[ValueCoding.FLOAT32]):
        raise unexpected(*_NOT_FINITE)
    codes, scales = _rounded(float_bits, coding)
    no_parameters = np.empty(0, np.uint8)
    return PlannedValues(
        scales, codes, _width(coding), False, 0, no_parameters, raw_bytes(coding, codes.size)
    )


def read_values(header: Header, data: Bytes, at: int, end: int) -> tuple[Tensor, int]:
    """Return the values, fp32 [K], of which ``data[at:end]`` starts with, and the byte after them.

    No more than 8 values are claimed per byte, else no memory is taken. Raises PayloadError.
    """
    count, coding = header.count, header.value_coding
    scale_words = _scale_words(coding, count)
    least = 4 * scale_words + -(-count // 8) if header.packed else raw_bytes(coding, count)
    if least > end - at:
        raise unexpected(
            "length", f"{end - at} bytes", f"at least {least} bytes of values", "the payload is corrupted"
        )
    scales = np.zeros(scale_words, np.uint32)
    at = bits.append(data, at, end, 32, scales, 0, scale_words)
    if header.packed:
        codes, at = _unpacked(coding, data, at, end, count)
    else:
        codes = np.zeros(count, np.uint32)
        at = bits.append(data, at, end, _width(coding), codes, 0, count)
    if is_floating(coding) and not loops.all_finite(codes, *FIELDS[coding]):
        raise unexpected(*_NOT_FINITE)
    return torch.from_numpy(_widened(codes, scales, coding)), at


def _unpacked(coding: ValueCoding, data: Bytes, at: int, end: int, count: int) -> tuple[Words, int]:
    exponent, mantissa = FIELDS[coding]
    numbers, codes = np.empty(count, np.uint32), np.empty(count, np.uint32)
    after = rice.read(data, at + 1, end, (1 << _width(coding)) - 1, numbers)
    if after < 0:
        found = "too few bytes" if after == rice.ENDS_EARLY else "a number that is too large"
        expected = f"{count} numbers of {_width(coding)} bits"
        raise unexpected("values", found, expected, "the payload is corrupted")
    loops.from_numbers(numbers, exponent, mantissa, data[at], codes)
    return codes, after


def _rounded(float_bits: Words, coding: ValueCoding) -> tuple[Words, Words]:
    """Return the codes and the scales of fp32 values."""
    scales = np.empty(_scale_words(coding, float_bits.size), np.uint32)
    if coding is ValueCoding.FLOAT32:
        return float_bits, scales
    codes = np.empty_like(float_bits)
    if coding is ValueCoding.FLOAT16:
        loops.to_half(float_bits, codes)
    elif coding is ValueCoding.BFLOAT16:
        loops.to_bfloat(float_bits, codes)
    else:
        loops.to_levels(float_bits, FIELDS[coding][0], codes, scales)
    return codes, scales


def _widened(codes: Words, scales: Words, coding: ValueCoding) -> npt.NDArray[np.float32]:
    """Return the fp32 values of codes and scales. Raises PayloadError if the scales are no scales."""
    if coding is ValueCoding.FLOAT32:
        return codes.view(np.float32)
    float_bits = np.empty_like(codes)
    if coding is ValueCoding.FLOAT16:
        loops.from_half(codes, float_bits)
    elif coding is ValueCoding.BFLOAT16:
        loops.from_bfloat(codes, float_bits)
    elif not loops.from_levels(codes, FIELDS[coding][0], scales, float_bits):
        raise unexpected(
            "scales", "a pair that is none", "two finite magnitudes, rising", "the payload is corrupted"
        )
    return float_bits.view(np.float32)


def _width(coding: ValueCoding) -> int:
    exponent, mantissa = FIELDS[coding]
    return 1 + exponent + mantissa


def _scale_words(coding: ValueCoding, count: int) -> int:
    return 0 if is_floating(coding) else 2 * -(-count // loops.GROUP)

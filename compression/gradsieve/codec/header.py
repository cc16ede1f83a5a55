"""What every payload starts and ends with: little endian, versioned, checksummed; as short as it can be.

Eight bytes of fixed layout, four numbers of as many bytes as they need, the body, the checksum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gradsieve.codec.checksum import CHECKSUM_BYTES, checksum
from gradsieve.codec.faults import unexpected
from gradsieve.codec.numbers import LONGEST_NUMBER, read_numbers, write_numbers

Bytes = npt.NDArray[np.uint8]
MAGIC = b"GRSV"
VERSION = 2
_FIXED = struct.Struct("<4sBBBB")
_NUMBERS = ("plan epoch", "elements", "count", "length")
_LONGEST = _FIXED.size + len(_NUMBERS) * LONGEST_NUMBER
_PACKED = 0x10
_Code = TypeVar("_Code", bound=IntEnum)


class IndexCoding(IntEnum):
    """How the payload says which entries its values belong to."""

    DENSE = 0
    DELTA = 1
    GROUP16 = 2
    RICE = 3
    BITMAP = 4


class ValueCoding(IntEnum):
    """The number format of the values."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3
    INT4 = 4
    INT2 = 5


class Refusal(IntEnum):
    """Why a rank sends no gradient in this step."""

    NONE = 0
    NON_FINITE = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The header's fields, without magic and version.

    packed: whether the values are Golomb-Rice coded. epoch: number of the plan that the payload was made
        under.
    elements: N of the tensor. count: entries with a value. body: bytes between header and checksum.
    """

    index_coding: IndexCoding
    value_coding: ValueCoding
    packed: bool
    refusal: Refusal
    epoch: int
    elements: int
    count: int
    body: int


def pack(header: Header) -> bytes:
    """Return the header's bytes."""
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        header.index_coding,
        header.value_coding | (_PACKED if header.packed else 0),
        header.refusal,
    )
    return fixed + write_numbers((header.epoch, header.elements, header.count, header.body))


def seal(payload: Bytes, length: int) -> None:
    """Write the checksum of all that precedes it into the last bytes of ``payload[:length]``."""
    end = length - CHECKSUM_BYTES
    payload[end:length] = np.frombuffer(
        checksum(payload, 0, end).to_bytes(CHECKSUM_BYTES, "little"), np.uint8
    )


def unpack(data: Bytes, at: int) -> tuple[Header, int]:
    """Return the header of the payload that starts at byte ``at``, and where its body starts.

    Checks magic, version, length, checksum and codes, in this order; the body itself is not examined. Raises
    PayloadError naming the field.
    """
    start = data[at : at + _LONGEST].tobytes()
    if len(start) < _FIXED.size + len(_NUMBERS):
        raise unexpected(
            "header",
            f"{len(start)} bytes",
            f"at least {_FIXED.size + len(_NUMBERS)} bytes",
            "the payload is truncated",
        )
    magic, version, index_coding, value_coding, refusal = _FIXED.unpack_from(start)
    if magic != MAGIC:
        raise unexpected("magic", magic, MAGIC, "these bytes are not a gradsieve payload")
    if version != VERSION:
        raise unexpected("version", version, VERSION, "run the same gradsieve release on all ranks")
    (epoch, elements, count, body), used = read_numbers(start, _FIXED.size, _NUMBERS)
    left = data.size - at - used - CHECKSUM_BYTES
    if body > left:
        raise unexpected("length", body, f"at most {left} bytes", "the payload is truncated or corrupted")
    end = at + used + body
    stored = int.from_bytes(data[end : end + CHECKSUM_BYTES].tobytes(), "little")
    actual = checksum(data, at, end)
    if stored != actual:
        raise unexpected("checksum", f"{stored:#010x}", f"{actual:#010x}", "the payload is corrupted")
    header = Header(
        _member(IndexCoding, index_coding, "index coding"),
        _member(ValueCoding, value_coding & ~_PACKED, "value coding"),
        bool(value_coding & _PACKED),
        _member(Refusal, refusal, "refusal"),
        epoch,
        elements,
        count,
        body,
    )
    return header, at + used


def _member(kind: type[_Code], code: int, field: str) -> _Code:
    try:
        return kind(code)
    except ValueError:
        known = ", ".join(f"{member.value} ({member.name.lower()})" for member in kind)
        raise unexpected(field, code, known, "run the same gradsieve release on all ranks") from None

"""The 40 bytes that every payload starts with: little endian, versioned, checksummed."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from gradsieve.errors import PayloadError

MAGIC = b"GRSV"
VERSION = 1
_LAYOUT = struct.Struct("<4sBBBBIIQQQ")
_CHECKSUM = slice(12, 16)
HEADER_BYTES = _LAYOUT.size
_Code = TypeVar("_Code", bound=IntEnum)


class IndexCoding(IntEnum):
    """How the payload says which entries its values belong to."""

    DENSE = 0
    DELTA = 1
    GROUP16 = 2


class ValueCoding(IntEnum):
    """The number format of the values."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


class Refusal(IntEnum):
    """Why a rank sends no gradient in this step."""

    NONE = 0
    NON_FINITE = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The header's fields, without magic, version and checksum.

    elements: N of the tensor. count: entries with a value. length: bytes of the whole payload, header
        included.
    epoch: number of the plan that the payload was made under.
    """

    index_coding: IndexCoding
    value_coding: ValueCoding
    refusal: Refusal
    epoch: int
    elements: int
    count: int
    length: int


def seal(header: Header, body: bytes) -> bytearray:
    """Return the payload's bytes: header with checksum, then ``body``."""
    packed = _LAYOUT.pack(
        MAGIC,
        VERSION,
        header.index_coding,
        header.value_coding,
        header.refusal,
        header.epoch,
        0,
        header.elements,
        header.count,
        header.length,
    )
    payload = bytearray(packed)
    payload += body
    payload[_CHECKSUM] = checksum(payload).to_bytes(4, "little")
    return payload


def checksum(payload: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of all bytes but the checksum's own four."""
    view = memoryview(payload)
    return zlib.crc32(view[_CHECKSUM.stop :], zlib.crc32(view[: _CHECKSUM.start]))


def length_of(buffer: memoryview) -> int:
    """Return the length in bytes of the payload that ``buffer`` starts with; the rest of it is not examined.

    Raises PayloadError for another magic or version, or if the buffer is shorter than the payload.
    """
    if len(buffer) < HEADER_BYTES:
        raise unexpected(
            "header", f"{len(buffer)} bytes", f"{HEADER_BYTES} bytes", "the payload is truncated"
        )
    magic, version, *_, length = _LAYOUT.unpack_from(buffer)
    if magic != MAGIC:
        raise unexpected("magic", magic, MAGIC, "these bytes are not a gradsieve payload")
    if version != VERSION:
        raise unexpected("version", version, VERSION, "run the same gradsieve release on all ranks")
    if not HEADER_BYTES <= length <= len(buffer):
        allowed = f"{HEADER_BYTES} to the {len(buffer)} bytes received"
        raise unexpected("length", length, allowed, "the payload is truncated or corrupted")
    return int(length)


def open_sealed(payload: memoryview) -> Header:
    """Return the header of exactly one payload, after checking length and checksum.

    Raises PayloadError naming the field.
    """
    length = length_of(payload)
    if length != len(payload):
        raise unexpected("length", length, f"the {len(payload)} bytes received", "bytes follow the payload")
    _, _, index_coding, value_coding, refusal, epoch, stored, elements, count, _ = _LAYOUT.unpack_from(
        payload
    )
    actual = checksum(payload)
    if stored != actual:
        raise unexpected("checksum", f"{stored:#010x}", f"{actual:#010x}", "the payload is corrupted")
    return Header(
        _member(IndexCoding, index_coding, "index coding"),
        _member(ValueCoding, value_coding, "value coding"),
        _member(Refusal, refusal, "refusal"),
        epoch,
        elements,
        count,
        length,
    )


def unexpected(field: str, found: object, expected: object, advice: str) -> PayloadError:
    """Return the error for a payload whose ``field`` is not as expected."""
    return PayloadError(f"payload field '{field}': found {found!s}, expected {expected!s}; {advice}")


def _member(kind: type[_Code], code: int, field: str) -> _Code:
    try:
        return kind(code)
    except ValueError:
        known = ", ".join(f"{member.value} ({member.name.lower()})" for member in kind)
        raise unexpected(field, code, known, "run the same gradsieve release on all ranks") from None

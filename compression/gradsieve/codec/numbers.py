"""Numbers of as many bytes as they need, as headers have them: seven bits per byte, the lowest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradsieve.codec.faults import unexpected

LONGEST_NUMBER = 8  # so that numbers are below 2**56, and loops can count with them in 64 bits
_MORE, _SEVEN_BITS = 0x80, 0x7F


def write_numbers(numbers: Iterable[int]) -> bytes:
    """Return the bytes of numbers within [0, 2**56)."""
    out = bytearray()
    for number in numbers:
        rest = number
        while rest > _SEVEN_BITS:
            out.append(rest & _SEVEN_BITS | _MORE)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def read_numbers(data: bytes, at: int, fields: Sequence[str]) -> tuple[list[int], int]:
    """Return a number for each of ``fields``, from byte ``at`` on, and the byte after the last.

    Raises PayloadError naming the field whose number does not end within ``data``, or is too long.
    """
    numbers: list[int] = []
    number = shift = 0
    for index in range(at, len(data)):
        if len(numbers) == len(fields):
            return numbers, index
        byte = data[index]
        number |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if byte & _MORE:
            if shift == 7 * LONGEST_NUMBER:
                break
            continue
        numbers.append(number)
        number = shift = 0
    if len(numbers) == len(fields):
        return numbers, len(data)
    allowed = f"at most {LONGEST_NUMBER} bytes, the last below 128"
    field = fields[len(numbers)]
    raise unexpected(field, "a number without end", allowed, "the payload is truncated or corrupted")

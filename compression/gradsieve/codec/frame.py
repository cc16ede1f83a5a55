"""What a message of a bucket starts with: its plan, its tensors, and when its sender was ready.

Exchanges cut buckets into blocks and send sums of them; a block alone does not tell what it is a part of. The
format is written down in docs/wire-format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradsieve.codec.checksum import CHECKSUM_BYTES, checksum
from gradsieve.codec.faults import unexpected
from gradsieve.codec.header import seal
from gradsieve.codec.numbers import LONGEST_NUMBER, read_numbers, write_numbers

MAGIC = b"GRSF"
VERSION = 1
_FIXED = struct.Struct("<4sB")
_COUNTS = ("plan epoch", "ready time", "tensors")


@dataclass(frozen=True, slots=True)
class Label:
    """What a message belongs to.

    epoch: number of the plan in force. sizes: elements of each tensor in the bucket, in order.
    ready_microseconds: from when the last step had arrived to when the bucket was ready, on the sender or, if
    it knows of a later one, on another rank.
    """

    epoch: int
    sizes: tuple[int, ...]
    ready_microseconds: int = 0


def frame(content: Tensor, label: Label) -> Tensor:
    """Return a message (uint8 [bytes], CPU, contiguous) with ``content`` (uint8 [bytes], not mutated) in
    it.
    """
    return framed([content], label)


def framed(pieces: Sequence[Tensor], label: Label) -> Tensor:
    """Return a message with pieces (uint8 [bytes] each, not mutated) one behind the other; see `frame`."""
    start = _start(sum(each.numel() for each in pieces), label)
    sizes = [len(start), *(each.numel() for each in pieces), CHECKSUM_BYTES]
    message = np.empty(sum(sizes), np.uint8)
    message[: len(start)] = np.frombuffer(start, np.uint8)
    at = len(start)
    for each in pieces:
        message[at : at + each.numel()] = each.numpy()
        at += each.numel()
    seal(message, message.size)
    return torch.from_numpy(message)


def start_bytes(content_bytes: int, label: Label) -> int:
    """Return how many bytes of a message stand before so many bytes of content."""
    return len(_start(content_bytes, label))


def _start(content_bytes: int, label: Label) -> bytes:
    numbers = (label.epoch, label.ready_microseconds, len(label.sizes), *label.sizes, content_bytes)
    return _FIXED.pack(MAGIC, VERSION) + write_numbers(numbers)


def unframe(message: Tensor) -> tuple[Label, Tensor]:
    """Return the label and the content of a message (uint8 [bytes], CPU); they share memory.

    Raises PayloadError, naming the field, for bytes that are truncated, corrupted or foreign.
    """
    data = message.contiguous().numpy()
    if data.size < _FIXED.size + CHECKSUM_BYTES:
        found, least = f"{data.size} bytes", f"at least {_FIXED.size + CHECKSUM_BYTES} bytes"
        raise unexpected("frame", found, least, "the message is truncated")
    magic, version = _FIXED.unpack(data[: _FIXED.size].tobytes())
    if magic != MAGIC:
        raise unexpected("magic", magic, MAGIC, "these bytes are not a gradsieve frame")
    if version != VERSION:
        raise unexpected("version", version, VERSION, "run the same gradsieve release on all ranks")
    end = data.size - CHECKSUM_BYTES
    stored = int.from_bytes(data[end:].tobytes(), "little")
    actual = checksum(data, 0, end)
    if stored != actual:
        raise unexpected("checksum", f"{stored:#010x}", f"{actual:#010x}", "the message is corrupted")
    at = _FIXED.size
    start = data[at : min(at + len(_COUNTS) * LONGEST_NUMBER, end)].tobytes()
    (epoch, ready, tensors), used = read_numbers(start, 0, _COUNTS)
    at += used
    if tensors >= end - at:  # each takes a byte, and so does the length: claim no memory for more
        raise unexpected("tensors", tensors, f"below {end - at}", "the message is corrupted")
    start = data[at : min(at + (tensors + 1) * LONGEST_NUMBER, end)].tobytes()
    (*sizes, length), used = read_numbers(start, 0, ("size",) * tensors + ("length",))
    at += used
    if length != end - at:
        raise unexpected("length", length, f"{end - at} bytes", "the message is truncated or corrupted")
    return Label(epoch, tuple(sizes), ready), torch.from_numpy(data[at:end])

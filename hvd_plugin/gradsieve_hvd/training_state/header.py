"""What a commit file starts with: whose state of which step it is, and how to tell that it is whole.

Little endian::

    magic  version  step  generation  run  rank  size  shared's bytes, checksum  own bytes, checksum  crc32
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_MAGIC = b"GRSVSTAT"
_VERSION = 1
_FIELDS = struct.Struct("<8sIqqQIIQQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file: its length in bytes and its checksum (`gradsieve.codec.checksum`)."""

    size: int
    checksum: int


NOTHING = Section(0, 0)


@dataclass(frozen=True, slots=True)
class Commit:
    """What identifies a commit file.

    step: optimizer steps that were completed. generation: of the job that wrote it.
    run: random number that the ranks agreed on when they started. Two commits of one step are the same
        training's only if their runs agree.
    rank, size: who wrote it, in a job of how many ranks.
    """

    step: int
    generation: int
    run: int
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """A file's header. ``shared`` is what all ranks have in common; empty if another rank's file has it."""

    commit: Commit
    shared: Section
    own: Section

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return HEADER_BYTES + self.shared.size + self.own.size

    def packed(self) -> bytes:
        """The header's bytes."""
        commit, shared, own = self.commit, self.shared, self.own
        fields = _FIELDS.pack(
            _MAGIC,
            _VERSION,
            commit.step,
            commit.generation,
            commit.run,
            commit.rank,
            commit.size,
            shared.size,
            shared.checksum,
            own.size,
            own.checksum,
        )
        return fields + _CRC.pack(zlib.crc32(fields))


class Unusable(Exception):
    """A commit file cannot be used; the message says why. Never leaves this package."""


def read_header(start: bytes, file_bytes: int) -> Header:
    """Return the header of a file that starts with ``start`` and is ``file_bytes`` long.

    Raises:
        Unusable: truncated, corrupted, or not a commit of this version.
    """
    if len(start) < HEADER_BYTES:
        raise Unusable(f"it is truncated: {len(start)} bytes, the header alone has {HEADER_BYTES}")
    fields = start[: _FIELDS.size]
    magic, version, step, generation, run, rank, size, *sections = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise Unusable("it is no commit of gradsieve, or its header is corrupted")
    if _CRC.unpack_from(start, _FIELDS.size) != (zlib.crc32(fields),):
        raise Unusable("its header is corrupted")
    if version != _VERSION:
        raise Unusable(f"it has version {version}, this gradsieve reads {_VERSION}")
    shared, own = Section(*sections[:2]), Section(*sections[2:])
    header = Header(Commit(step, generation, run, rank, size), shared, own)
    if file_bytes != header.file_bytes:
        raise Unusable(f"it is truncated: {file_bytes} of {header.file_bytes} bytes")
    return header

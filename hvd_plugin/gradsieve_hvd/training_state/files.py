"""Writing and reading one commit file.

Tensors are written by ``torch.save`` and read by ``torch.load(weights_only=True)``: a file can hold no code.
Its own CRC-32 is switched off while writing (it halves the speed, and ``torch.load`` does not look at it);
each section has a checksum of gradsieve's, at the memory's speed.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import torch

from gradsieve.codec.checksum import checksum
from gradsieve_hvd.training_state.header import (
    HEADER_BYTES,
    NOTHING,
    Commit,
    Header,
    Section,
    Unusable,
    read_header,
)

_COPY_BYTES = 8 << 20


def write(path: Path, commit: Commit, shared: Any, own: Any) -> None:
    """Write a commit into ``path``; the memory of a file that is already there is used again.

    1. Leave room for the header, write both sections, cut off what an older file had more.
    2. Checksum both, where they lie now.
    3. Write the header last: until then the file is no commit.

    Raises:
        OSError: there is no room.
        Exception: what ``torch.save`` raises for an object that cannot be saved.
    """
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        file.write(bytes(HEADER_BYTES))
        with _without_crc32():
            _save(shared, file)
            middle = file.tell()
            _save(own, file)
        end = file.tell()
        file.truncate(end)
        data = _mapped(path)
        sections = [
            Section(stop - start, checksum(data, start, stop))
            for start, stop in ((HEADER_BYTES, middle), (middle, end))
        ]
        file.seek(0)
        file.write(Header(commit, *sections).packed())


def header_of(path: Path) -> Header:
    """Return the header of a file.

    Raises:
        Unusable: see `read_header`; or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror}") from error


def copy(source: IO[bytes], target: Path, *, with_shared: bool) -> None:
    """Copy a commit file to slow storage and wait until it is there; without the shared section if asked to.

    Raises:
        OSError: there is no room, or the storage failed.
    """
    source.seek(0)
    header = read_header(source.read(HEADER_BYTES), os.fstat(source.fileno()).st_size)
    if not with_shared:
        source.seek(header.shared.size, os.SEEK_CUR)
        header = Header(header.commit, NOTHING, header.own)
    with target.open("wb") as file:
        file.write(header.packed())
        while chunk := source.read(_COPY_BYTES):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


class Opened:
    """A commit file that is being read.

    Raises:
        Unusable: see `read_header`; or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.header = header_of(path)
        try:
            self._data = _mapped(path)
        except (OSError, ValueError) as error:
            raise Unusable(f"it cannot be read: {error}") from error

    def shared_part(self, start: int, stop: int) -> bytes:
        """Bytes ``[start:stop]`` of the shared section."""
        return self._data[HEADER_BYTES + start : HEADER_BYTES + min(stop, self.header.shared.size)].tobytes()

    def load_shared(self) -> Any:
        """Return what was saved as shared, on the CPU.

        Raises:
            Unusable: it is corrupted.
        """
        return self._load(self.header.shared, HEADER_BYTES)

    def load_own(self) -> Any:
        """Return what was saved as the rank's own, on the CPU.

        Raises:
            Unusable: it is corrupted.
        """
        return self._load(self.header.own, HEADER_BYTES + self.header.shared.size)

    def _load(self, section: Section, start: int) -> Any:
        end = start + section.size
        if end > self._data.size or checksum(self._data, start, end) != section.checksum:
            raise Unusable("its checksum is wrong")
        return load(io.BytesIO(self._data[start:end].tobytes()))


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    """Return a file's bytes without reading them yet; changes would not reach the file."""
    return np.asarray(np.memmap(path, np.uint8, mode="c"))


def load(file: IO[bytes]) -> Any:
    """Return what ``torch.save`` wrote into ``file``, on the CPU, without executing anything from it.

    Raises:
        Unusable: it holds objects that need code to be built, or is no such file.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Unusable(f"it cannot be loaded: {error}") from error


def _save(saved: Any, file: IO[bytes]) -> None:
    target = _Unbuffered(file)
    try:
        torch.save(saved, cast("IO[bytes]", target))
    except Exception:
        if target.failure is not None:  # torch says instead that it is at an unexpected position
            raise target.failure from None
        raise


class _Unbuffered:
    """The file that ``torch.save`` writes to. Python's raw files may write less than they were given.

    failure: why writing failed, if it did.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        total = 0
        try:
            while total < len(view):
                total += self._file.write(view[total:])
        except OSError as error:
            self.failure = error
            raise
        return total

    def flush(self) -> None:
        """There is nothing to flush."""


@contextlib.contextmanager
def _without_crc32() -> Iterator[None]:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)

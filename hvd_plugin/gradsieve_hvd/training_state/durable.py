"""Copies of commits on storage that outlives all pods, written by a thread while training goes on."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import IO

from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.header import Commit, Unusable
from gradsieve_hvd.training_state.store import Folder


class DurableCopies:
    """One rank's copies in a folder of the user's, the last ``keep`` kept.

    Rank 0 copies everything; the others only what is theirs (residual, policy, random numbers): the rest is
    the same on all ranks.
    """

    def __init__(self, path: Path, rank: int, keep: int) -> None:
        self.folder = Folder(path, rank, keep)
        self._rank = rank
        self._thread: threading.Thread | None = None
        self._failure = ""

    @property
    def busy(self) -> bool:
        """Whether a copy is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, source: Path, commit: Commit) -> None:
        """Begin to copy a commit's file, which may be deleted or renamed meanwhile."""
        file = source.open("rb", buffering=0)
        self._thread = threading.Thread(
            target=self._copy, args=(file, commit), name="gradsieve-durable-copy", daemon=False
        )
        self._thread.start()

    def end(self, timeout: float) -> str:
        """Wait until the last copy has been written; return what went wrong with it, once."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return f"copying to {self.folder.path} takes longer than {timeout:g} s"
            self._thread = None
        failure, self._failure = self._failure, ""
        return failure

    def _copy(self, file: IO[bytes], commit: Commit) -> None:
        """Write beside, wait for the storage, then rename: a reader finds a whole file or none."""
        try:
            with file:
                files.copy(file, self.folder.draft, with_shared=self._rank == 0)
            self.folder.draft.replace(self.folder.path_of(commit))
            for path in self.folder.superfluous():
                path.unlink(missing_ok=True)
            _sync(self.folder.path)
        except (OSError, Unusable) as error:
            self._failure = f"the copy of step {commit.step} in {self.folder.path} failed: {error}"
            with contextlib.suppress(OSError):
                self.folder.draft.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Wait until renames in a folder are on the storage."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

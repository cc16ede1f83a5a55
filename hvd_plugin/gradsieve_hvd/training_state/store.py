"""A folder of commit files: what is in it, and how a new one comes to be there whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from gradsieve.errors import StateError
from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.header import Commit, Header, Unusable

_SUFFIX = ".commit"


def file_name(step: int, rank: int) -> str:
    """Name of a rank's commit of a step."""
    return f"step-{step:012d}.rank-{rank}{_SUFFIX}"


class Folder:
    """One rank's view of a folder of commits.

    rank: whose commits are written here. keep: how many of them stay.
    """

    def __init__(self, path: Path, rank: int, keep: int) -> None:
        self.path = path
        self._rank = rank
        self._keep = keep

    def create(self) -> None:
        """Make the folder.

        Raises:
            StateError: it cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"the folder {self.path} for commits cannot be made: {error.strerror}"
            ) from error

    def require_private(self) -> None:
        """Check that nobody else can put files here.

        Raises:
            StateError: it is another user's, a link, or open to everybody.
        """
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH:
            raise StateError(
                f"{self.path} is not a folder of this user alone: commits in it could be anybody's. Remove "
                "it, or set directory= (or GRADSIEVE_STATE_DIR)."
            )

    def place(self) -> str:
        """A name that is the same for all who see this very folder, and for nobody else."""
        found = self.path.stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{found.st_dev}:{found.st_ino}"

    def headers(self) -> Iterator[tuple[Path, Header | Unusable]]:
        """Every commit file with its header, or with what is wrong with it; in the order of names.

        A file that goes away meanwhile is left out: its rank has just replaced it by a newer one.
        """
        for path in sorted(self.path.glob(f"step-*{_SUFFIX}")):
            try:
                yield path, files.header_of(path)
            except Unusable as reason:
                if path.exists():
                    yield path, reason

    def path_of(self, commit: Commit) -> Path:
        """Where a commit is or will be."""
        return self.path / file_name(commit.step, commit.rank)

    @property
    def draft(self) -> Path:
        """Where the next commit is written; may hold an old one's memory, to be written over."""
        return self.path / f"rank-{self._rank}.draft"

    def publish(self, commit: Commit) -> None:
        """Give the draft its name, at once and for good; the oldest of this rank's commits that is too many
        becomes the next draft.

        Its memory is written over then, which takes a third of the time that new memory does.
        """
        self.draft.replace(self.path_of(commit))
        for path in self.superfluous():
            path.replace(self.draft)

    def superfluous(self) -> list[Path]:
        """The commits of this rank beyond the newest ``keep``."""
        return self.mine()[: -self._keep]

    def mine(self) -> list[Path]:
        """The commits of this rank, the oldest first."""
        return sorted(self.path.glob(f"step-*.rank-{self._rank}{_SUFFIX}"))

    def forget_after(self, step: int) -> None:
        """Delete this rank's commits of later steps, which no training has taken any more, and the draft."""
        self.draft.unlink(missing_ok=True)
        for path in self.mine():
            if path.name > file_name(step, self._rank):
                path.unlink(missing_ok=True)

    def forget_others(self, ranks: Collection[int], but_up_to: int = -1) -> None:
        """Delete the files of ranks that are not here any more, but for the newest commit that each of them
        has of a step up to ``but_up_to``.
        """
        for rank in self._all_ranks() - set(ranks):
            other = Folder(self.path, rank, keep=1)
            other.forget_after(but_up_to)
            for path in other.superfluous():
                path.unlink(missing_ok=True)

    def _all_ranks(self) -> set[int]:
        """The ranks that have any file here."""
        names = (path.name.removesuffix(_SUFFIX).removesuffix(".draft") for path in self.path.glob("*rank-*"))
        numbers = (name.rpartition("rank-")[2] for name in names)
        return {int(number) for number in numbers if number.isdecimal()}

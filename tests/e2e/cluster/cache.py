"""What is built once and kept outside the clone: a folder per digest of all that decides its content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def cache_root() -> Path:
    """Return the folder of all that is kept: `$XDG_CACHE_HOME` or `~/.cache`, then gradsieve/cluster."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "gradsieve" / "cluster"


def digest(parts: Iterable[str | bytes]) -> str:
    """Return 16 hexadecimal digits that change with any of `parts` and with where one ends."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def file_parts(root: Path, files: Iterable[Path]) -> list[str | bytes]:
    """Return names (relative to `root`) and contents of `files` in a fixed order, for :func:`digest`."""
    ordered = sorted(files)
    return [part for file in ordered for part in (str(file.relative_to(root)), file.read_bytes())]


def built_once(kind: str, key: str, build: Callable[[Path], None], *, keep: int = 2) -> Path:
    """Return the folder of `key` among those of `kind`, calling `build` with an empty folder when it is not
    there.

    1. A folder that exists is whole, because folders appear by renaming only.
    2. Otherwise one process builds, under the kind's lock, which the kernel drops with the process.
    3. What killed builds left is removed, and of the finished folders all but the `keep` used last.
    """
    folder = cache_root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / key
    if not entry.exists():
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not entry.exists():
                _remove_unfinished(folder)
                unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
                unfinished.chmod(0o755)
                build(unfinished)
                unfinished.rename(entry)
                _remove_oldest(folder, entry, keep)
    os.utime(entry)
    return entry


_UNFINISHED = ".building-"


def _remove_unfinished(folder: Path) -> None:
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left)


def _remove_oldest(folder: Path, entry: Path, keep: int) -> None:
    others = [path for path in folder.iterdir() if path.is_dir() and path != entry]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[keep - 1 :]:
        shutil.rmtree(path)

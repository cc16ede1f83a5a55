"""What a release is made from: the files that git knows, as a tree with one date and plain modes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PLAIN, _EXECUTABLE = 0o644, 0o755


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def uncommitted() -> list[str]:
    """Return the paths that differ from the last commit, new ones included."""
    return _git("status", "--porcelain").splitlines()


def release_time() -> int:
    """Return the date of all files in seconds since 1970: SOURCE_DATE_EPOCH, else the last commit's."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


def copy_sources(target: Path, time: int) -> list[Path]:
    """Copy what git knows below `target`; return the paths, relative and sorted.

    Neither this machine's umask nor the times at which files were checked out reach a release.
    """
    names = sorted(Path(name) for name in _git("ls-files", "-z").split("\0") if name)
    for name in names:
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
        copy.chmod(_EXECUTABLE if source.stat().st_mode & 0o100 else _PLAIN)
        os.utime(copy, (time, time))
    return names

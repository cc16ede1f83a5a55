"""A virtual environment of just what some requirements need, linked from the one that runs this program.

It stands for `pip install` into an empty one without fetching gigabytes of PyTorch again.
"""

from __future__ import annotations

import subprocess
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def extras_of(wheel: Path) -> list[str]:
    """Return the names of a wheel's extras."""
    return _metadata(wheel).get_all("Provides-Extra", [])


def requirements_of(wheel: Path, *extras: str) -> list[Requirement]:
    """Return what a wheel asks for on this machine, by itself and with each of some extras."""
    named = [Requirement(each) for each in _metadata(wheel).get_all("Requires-Dist", [])]
    return [each for each in named if any(_applies(each, extra) for extra in ("", *extras))]


def write_environment(folder: Path, requirements: Iterable[Requirement]) -> Path:
    """Make the environment in `folder`; return its interpreter.

    Where several packages share a folder (such as ``nvidia``), all that lies there is linked. Commands of the
    packages are not.

    Raises:
        PackageNotFoundError: something that is needed is not installed here.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    for found in _closure(requirements).values():
        for name in _outermost(found):
            link, there = packages / name, Path(str(found.locate_file(name)))
            if not link.is_symlink():
                link.symlink_to(there)
    return python


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        [name] = [each for each in opened.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(opened.read(name).decode())


def _closure(requirements: Iterable[Requirement]) -> dict[str, Distribution]:
    """Return the installed distributions that requirements come to, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(each, extra) for each in requirements for extra in ("", *each.extras)]
    while waiting:
        requirement, extra = waiting.pop()
        if (requirement.name, extra) in seen:
            continue
        seen.add((requirement.name, extra))
        found[requirement.name] = distribution(requirement.name)
        for line in found[requirement.name].requires or []:
            inner = Requirement(line)
            if _applies(inner, extra):
                waiting += [(inner, each) for each in ("", *inner.extras)]
    return found


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _outermost(found: Distribution) -> Iterator[str]:
    """Yield the names of a distribution's files and folders that lie directly among the packages."""
    names = {file.parts[0] for file in found.files or []}
    yield from sorted(names - {"..", "__pycache__"})

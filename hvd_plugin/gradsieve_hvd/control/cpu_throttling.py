"""How often the kernel kept this container from its processors, by its own cgroup's account."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_CONTROLLERS: Final = ("cpu,cpuacct", "cpu")
"""Folders that version 1 mounts the controller at; version 2 has one for all."""


class CpuThrottling:
    """Reads ``cpu.stat`` again and again; a container without a CPU limit has nothing to tell.

    1. The kernel deals a limit's time out in periods of mostly 100 ms. In a throttled one it was used up.
    2. A reading is the share of throttled periods since the one before.

    Only limits of the container itself are seen, not those of its pod or node.

    Args:
        mount: where cgroups are.
        own: says in which this process is.
    """

    def __init__(self, mount: Path = _MOUNT, own: Path = _OWN) -> None:
        self._file = _statistics(mount, own)
        self._before = self._counted()

    def read(self) -> float | None:
        """Return the share of throttled periods since the last reading; None without a period in between."""
        before, self._before = self._before, self._counted()
        if before is None or self._before is None:
            return None
        periods, throttled = (now - then for now, then in zip(self._before, before, strict=True))
        return min(max(throttled / periods, 0.0), 1.0) if periods > 0 else None

    def _counted(self) -> tuple[int, int] | None:
        """Return the periods so far, and those of them that were throttled."""
        if self._file is None:
            return None
        try:
            lines = (line.split() for line in self._file.read_text().splitlines())
            found = {words[0]: int(words[1]) for words in lines if len(words) == 2}
            return found["nr_periods"], found["nr_throttled"]
        except (OSError, ValueError, KeyError):
            return None


def _statistics(mount: Path, own: Path) -> Path | None:
    """Return the file of the cgroup that this process is in.

    A container sees its own cgroup at the mount's top, whatever it is called outside.
    """
    paths = _own_paths(own)
    for controller, folder in [*((name, mount / name) for name in _CONTROLLERS), ("", mount)]:
        within = paths.get(controller, "/").lstrip("/")
        for candidate in (folder / within / "cpu.stat", folder / "cpu.stat"):
            if candidate.is_file():
                return candidate
    return None


def _own_paths(own: Path) -> dict[str, str]:
    """Return the paths of this process' cgroups by controllers; version 2's by no name."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    found = [line.split(":", 2) for line in lines]
    return {controllers: path for _, controllers, path in (words for words in found if len(words) == 3)}

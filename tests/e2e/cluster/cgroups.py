"""The cgroups of one cluster: everything that it starts lives below one folder per hierarchy.

Works with version 1 (a hierarchy per controller) and version 2 (one for all).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from cluster.errors import ClusterError

_PERIOD = 100_000  # microseconds: the kernel's default


def hierarchies() -> dict[str, Path]:
    """Return mount points by controllers: `{"cpu": …, "pids": …}` with version 1, `{"": …}` for version 2."""
    found = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found[""] = Path(point)
        elif kind == "cgroup":
            skipped = {"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "xattr"}
            found |= {name: Path(point) for name in options.split(",") if name not in skipped}
    return found


def is_version_2() -> bool:
    """Tell whether controllers are in the one hierarchy of version 2 (a hybrid machine's has none)."""
    found = hierarchies()
    return "" in found and "cpu" not in found


def create(path: str) -> None:
    """Create cgroup `path` (and what is above it) wherever limits are set or processes counted."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        for controller, mount in hierarchies().items():
            folder = mount.joinpath(*parts[:depth])
            if folder.exists():
                continue
            if controller == "" and is_version_2():
                available = (folder.parent / "cgroup.controllers").read_text().split()
                wanted = " ".join(f"+{name}" for name in available)
                (folder.parent / "cgroup.subtree_control").write_text(wanted)
            folder.mkdir()
            if "cpuset" in controller:
                # Version 1 starts them empty, and an empty cpuset takes no process.
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (folder / name).write_text((folder.parent / name).read_text())


def entry_file(path: str) -> Path:
    """Return the file whose writers join cgroup `path`, in the hierarchy that counts processes."""
    found = hierarchies()
    mount = found.get("pids", found.get(""))
    if mount is None:
        raise ClusterError("no cgroup hierarchy with the pids controller is mounted")
    return mount / path / "cgroup.procs"


def limit_cpu(path: str, cores: float | None) -> None:
    """Let cgroup `path` use no more than `cores` processors' time, or as much as it wants with None."""
    if is_version_2():
        quota = "max" if cores is None else str(round(cores * _PERIOD))
        (hierarchies()[""] / path / "cpu.max").write_text(f"{quota} {_PERIOD}")
    else:
        quota = "-1" if cores is None else str(round(cores * _PERIOD))
        (hierarchies()["cpu"] / path / "cpu.cfs_quota_us").write_text(quota)


def seconds_throttled(path: str) -> float:
    """Return how long processors were kept from cgroup `path` by its own limit, since it was created."""
    mount, field, unit = ("", "throttled_usec", 1e6) if is_version_2() else ("cpu", "throttled_time", 1e9)
    lines = (hierarchies()[mount] / path / "cpu.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)[field]) / unit


def weigh(path: str, times: int) -> None:
    """Give cgroup `path` that many times the weight of a process where processors are short; 1 is usual."""
    if is_version_2():
        (hierarchies()[""] / path / "cpu.weight").write_text(str(100 * times))
    else:
        (hierarchies()["cpu"] / path / "cpu.shares").write_text(str(1024 * times))


def limit_containers(path: str, uid: str, cores: float | None) -> None:
    """Limit each container of the pod ``uid`` below cgroup `path`, as a kubelet does for ``limits.cpu``."""
    mount = hierarchies()["" if is_version_2() else "cpu"]
    for folder in (mount / path).rglob(f"*{uid}*/*/"):
        limit_cpu(str(folder.relative_to(mount)), cores)


def processes(path: str) -> set[int]:
    """Return the ids of all processes in cgroup `path` and below it."""
    found: set[int] = set()
    for mount in set(hierarchies().values()):
        for folder in _folders(mount / path):
            with suppress(OSError):  # removed between the listing and the reading
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return found


def remove(path: str, *, seconds: float = 30) -> None:
    """Kill everything in cgroup `path` and remove it with all below it.

    Raises:
        ClusterError: something survived for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while left := processes(path):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {path}: processes {sorted(left)} outlive SIGKILL")
        time.sleep(0.02)
    while folders := [mount / path for mount in set(hierarchies().values()) if (mount / path).exists()]:
        for folder in folders:
            for each in reversed(_folders(folder)):
                _remove_folder(each)
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {path}: {folders} cannot be removed")
        time.sleep(0.02)


def _folders(top: Path) -> list[Path]:
    """Return ``top`` and all below it, each before what it holds; others may be removing them meanwhile."""
    # Unlike `Path.rglob`, this passes over what has gone.
    return [Path(folder) for folder, _, _ in os.walk(top)]


def _remove_folder(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        # Busy until the last dying process has left it: the caller comes back.
        return

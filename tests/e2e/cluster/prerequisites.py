"""What a machine must offer before a cluster can start on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import ClusterUnavailable

GO = (1, 26)
# Program -> Debian package, for a message that can be acted on.
PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
# What some tests need besides; a cluster starts without it.
_FOR_SOME_TESTS = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "faketime": "faketime",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
_PLUGINS = "containernetworking-plugins"
_PLUGIN_FOLDERS = [Path("/usr/lib/cni"), Path("/opt/cni/bin")]


def missing() -> list[str]:
    """Return what this machine lacks, one readable item each; empty when a cluster can start."""
    lacks = [] if os.geteuid() == 0 else ["root (namespaces, cgroups and mounts are its alone)"]
    lacks += [f"{program} (Debian package {package})" for program, package in _lacking(PROGRAMS)]
    if plugin_folder() is None:
        lacks.append(f"the CNI plug-ins bridge and host-local (Debian package {_PLUGINS})")
    if (version := go_version()) is None or version < GO:
        found = "none" if version is None else ".".join(map(str, version))
        lacks.append(f"Go {'.'.join(map(str, GO))} or newer (found: {found})")
    return lacks


def packages() -> list[str]:
    """Return the Debian packages that this machine lacks for all tests."""
    plugins = [] if plugin_folder() else [_PLUGINS]
    return sorted({package for _, package in _lacking({**PROGRAMS, **_FOR_SOME_TESTS})} | {*plugins})


def require() -> None:
    """Raise unless this machine can carry a cluster.

    Raises:
        ClusterUnavailable: something is missing.
    """
    if lacks := missing():
        raise ClusterUnavailable(f"a test cluster needs: {'; '.join(lacks)}")


def _lacking(programs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the programs that are not here, with their packages."""
    return [(program, package) for program, package in programs.items() if not shutil.which(program)]


def plugin_folder() -> Path | None:
    """Return the folder of the CNI plug-ins, wherever the distribution keeps them."""
    return next((folder for folder in _PLUGIN_FOLDERS if (folder / "bridge").exists()), None)


def go_version() -> tuple[int, int] | None:
    """Return major and minor version of the Go tools on PATH, or None without any."""
    if not shutil.which("go"):
        return None
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60).stdout
    found = re.match(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None

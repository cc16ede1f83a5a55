"""A small Debian with Python as a root file system, from the release and mirror that this machine uses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster.cache import built_once, digest
from cluster.errors import ClusterError

# python3-venv for images that install packages; the rest is what Python programs expect of a system.
_PACKAGES = ["ca-certificates", "python3", "python3-venv"]
_APT = Path("/etc/apt")
_BUILD_SECONDS = 1200
# What no pod reads: half of the size.
_UNREAD = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
]


def debian_root() -> Path:
    """Return the folder of the root file system, made by debootstrap once per suite and list of packages.

    Raises:
        ClusterError: the machine's package sources name no mirror, or debootstrap failed.
    """
    suite = _suite()
    return built_once("debian", f"{suite}-{digest([suite, *_PACKAGES, *_UNREAD])}", _bootstrap, keep=1)


def mirror() -> str:
    """Return the address of this machine's Debian mirror, as apt's configuration says."""
    for address in _addresses():
        if address.startswith(("http://", "https://")) and "security" not in address:
            return address
    raise ClusterError(f"no mirror in {_APT / 'sources.list'} or {_APT / 'sources.list.d'}")


def _addresses() -> Iterator[str]:
    for file in (_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*.list"))):
        if file.exists():
            for found in re.finditer(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)", file.read_text(), re.MULTILINE):
                yield found[1]
    for file in sorted((_APT / "sources.list.d").glob("*.sources")):
        for found in re.finditer(r"^URIs:\s*(.+)$", file.read_text(), re.MULTILINE):
            yield from found[1].split()


def _suite() -> str:
    release = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\S+)", release, re.MULTILINE)
    if not found:
        raise ClusterError("/etc/os-release names no VERSION_CODENAME: is this a Debian?")
    return found[1]


def _bootstrap(folder: Path) -> None:
    print("cluster: making a small Debian", file=sys.stderr, flush=True)
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(_PACKAGES)}",
        _suite(),
        str(folder),
        mirror(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    if done.returncode != 0:
        log = folder / "debootstrap" / "debootstrap.log"
        said = log.read_text(errors="replace") if log.exists() else done.stdout + done.stderr
        raise ClusterError(f"{' '.join(command)}: status {done.returncode}: {said[-3000:]}")
    for path in _UNREAD:
        shutil.rmtree(folder / path, ignore_errors=True)
    for archive in (folder / "var/cache").glob("**/*.deb"):
        archive.unlink()

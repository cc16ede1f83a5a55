"""A store of images that is filled once and then shared by all nodes of all clusters.

containerd keeps a layer as a folder, and what it knows about it in small databases. Unpacking an image on
every node of every cluster takes minutes of a slow disk; binding the folders takes nothing.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.cache import built_once, digest
from cluster.script import run_alone

PAUSE_IMAGE = "localhost/gradsieve/pause:1"
_SNAPSHOTS = Path("io.containerd.snapshotter.v1.overlayfs/snapshots")
_BLOBS = Path("io.containerd.content.v1.content/blobs/sha256")
_BUILD_SECONDS = 1200


@dataclass(frozen=True)
class Template:
    """The store in `root`, which nobody writes to any more."""

    root: Path

    def mounts(self, store: Path) -> list[str]:
        """Return the commands that make the folder `store` a store of its own with the same images."""
        commands = [f"mkdir -p {store / _SNAPSHOTS} {store / _BLOBS}"]
        for layer in sorted((self.root / _SNAPSHOTS).iterdir()):
            target = store / _SNAPSHOTS / layer.name
            commands += [f"mkdir {target}", f"mount -o bind,ro {shlex.quote(str(layer))} {target}"]
        for blob in sorted((self.root / _BLOBS).iterdir()):
            target = store / _BLOBS / blob.name
            commands += [f"touch {target}", f"mount -o bind,ro {shlex.quote(str(blob))} {target}"]
        for database in sorted(self.root.rglob("*.db")):
            target = store / database.relative_to(self.root)
            commands.append(f"install -D -m 600 {shlex.quote(str(database))} {target}")
        return commands


def build_template(archives: Sequence[Path]) -> Template:
    """Return the store with the images of `archives`, filled by a containerd of its own once.

    Raises:
        ClusterError: containerd does not start, or refuses an archive.
    """
    version = subprocess.run(["containerd", "--version"], capture_output=True, text=True, timeout=60).stdout
    # An archive's folder is named by the digest of what it was made from.
    key = digest([version, *(str(archive) for archive in archives)])
    return Template(built_once("template", key, lambda folder: _fill(folder, archives), keep=4) / "root")


def _fill(folder: Path, archives: Sequence[Path]) -> None:
    print("cluster: unpacking images", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        socket = f"{scratch}/containerd.sock"
        settings = Path(scratch, "containerd.toml")
        settings.write_text(
            "version = 2\n"
            f'root = "{folder}/root"\nstate = "{scratch}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
            f'[grpc]\n  address = "{socket}"\n'
        )
        ctr = f"ctr --address {socket} --namespace k8s.io"
        script = [
            "mount -t tmpfs tmpfs /run",
            f"containerd --config {settings} & daemon=$!",
            f"until {ctr} version >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done",
            *(f"{ctr} images import {shlex.quote(str(archive))}" for archive in archives),
            "kill $daemon",
            "wait $daemon",
        ]
        run_alone("unpacking images", script, _BUILD_SECONDS)

"""The Python environment and the sources that pods mount instead of a training image of 5 GB."""

from __future__ import annotations

import compileall
import functools
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.node_files import PYTHON_FOLDER

CLAIM = "python"
_KERNELS = "/opt/gradsieve-kernels"
PACKAGES = ["compression", "hvd_plugin", "operator"]
Manifest = dict[str, Any]


def mounted_folders() -> dict[str, Path]:
    """Return the folders of this machine that pods mount, by the names that they have on nodes.

    Pods cannot write there: the sources are compiled as an installation would have done.
    """
    kernels = kernel_folder()
    kernels.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        compileall.compile_dir(source_folder() / package, quiet=2)
    return {"environment": Path(sys.prefix), "sources": source_folder(), "kernels": kernels}


def kernel_folder() -> Path:
    """Return the cache of compiled kernels, by the library's own rule (gradsieve.kernels.kernel_cache)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache / "gradsieve" / "numba")


def source_folder() -> Path:
    """Return the root of the project's clone."""
    return Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class PythonVolume:
    """What a pod needs to find Python packages: put these into its manifest.

    Attributes:
        volumes: for `spec.volumes`.
        mounts: for `volumeMounts` of every container that runs Python.
        env: for `env` of the same containers.
    """

    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)
    env: list[Manifest] = field(default_factory=list)


@functools.cache
def python_volume() -> PythonVolume:
    """Return how a pod mounts environment and sources, read-only and at the paths that they have here.

    The environment works at no other: programs of the Open MPI wheel know where they are. Its own `python3`
    comes last on PATH, as it may link to an interpreter that no pod can read; the image's is used.

    Kernels are compiled first, where they are not: every rank would do so for itself, for half a minute.
    """
    subprocess.run([sys.executable, "-c", "import gradsieve.codec, gradsieve.kernels"], check=True)
    folders = mounted_folders()
    environment, sources = folders["environment"], folders["sources"]
    targets = {name: str(folder) for name, folder in folders.items()} | {"kernels": _KERNELS}
    quick_start = str(sources / "tests" / "support" / "quick_start")
    packages = [
        quick_start,
        *(str(sources / package) for package in PACKAGES),
        sysconfig.get_path("purelib"),
    ]
    programs = ["/usr/local/bin", "/usr/bin", "/bin", str(environment / "bin")]
    return PythonVolume(
        volumes=[{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}],
        mounts=[
            {"name": CLAIM, "mountPath": path, "subPath": name, "readOnly": True}
            for name, path in targets.items()
        ],
        env=[
            {"name": "PYTHONPATH", "value": os.pathsep.join(packages)},
            {"name": "PATH", "value": os.pathsep.join(programs)},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "GRADSIEVE_KERNELS", "value": _KERNELS},
        ],
    )


def claim_manifests(namespace: str, volume: str) -> list[Manifest]:
    """Return the PersistentVolume `volume` and the claim in `namespace` that binds to it and to no other."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(PYTHON_FOLDER), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]

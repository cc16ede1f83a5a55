"""The Python environment and the sources that pods mount instead of a training image of 5 GB."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.node_files import PYTHON_FOLDER

CLAIM = "python"
PACKAGES = ["compression", "hvd_plugin", "operator"]
Manifest = dict[str, Any]


def environment_folder() -> Path:
    """Return the virtual environment that the tests run in."""
    return Path(sys.prefix)


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


def python_volume() -> PythonVolume:
    """Return how a pod mounts environment and sources, read-only and each at the path that it has on this
    machine.

    The environment is relocatable in no other way: programs of the Open MPI wheel know their paths. Its own
    `python3` comes last on PATH, as it may link to an interpreter that no pod can read; the image's is used.
    """
    environment, sources = environment_folder(), source_folder()
    packages = [*(str(sources / package) for package in PACKAGES), sysconfig.get_path("purelib")]
    programs = ["/usr/local/bin", "/usr/bin", "/bin", str(environment / "bin")]
    return PythonVolume(
        volumes=[{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}],
        mounts=[
            {"name": CLAIM, "mountPath": str(environment), "subPath": "environment", "readOnly": True},
            {"name": CLAIM, "mountPath": str(sources), "subPath": "sources", "readOnly": True},
        ],
        env=[
            {"name": "PYTHONPATH", "value": os.pathsep.join(packages)},
            {"name": "PATH", "value": os.pathsep.join(programs)},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
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

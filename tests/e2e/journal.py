"""Jobs whose ranks write down when they were alive, where this machine can read it whatever is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cluster.external import ExternalCluster
from horovod_job import python_group

_CLAIM = "journal"
_FOLDER = "/journal"
PROGRAM = f"""
import os, time
names = ("OMPI_COMM_WORLD_RANK", "GRADSIEVE_JOB_GENERATION", "GRADSIEVE_POD_UID")
with open("{_FOLDER}/" + "_".join(os.environ[name] for name in names), "a") as file:
    while True:
        print(time.time(), file=file, flush=True)
        time.sleep(0.1)
"""

ELASTIC_PROGRAM = f"""
import os, time
import horovod.torch as hvd
import torch
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import run
names = ("GRADSIEVE_JOB_GENERATION", "GRADSIEVE_POD_UID")
hvd.init()

@run
def train(state):
    own = "_".join([str(hvd.rank()), *(os.environ[name] for name in names)])
    while True:
        hvd.allreduce(torch.zeros(1), name="step")
        with open("{_FOLDER}/" + own, "a") as file:
            print(time.time(), file=file)
        state.check_host_updates()
        time.sleep(0.1)

train(ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank))
"""
"""Of Horovod's elastic ranks, which write down each step that they have taken together."""


@dataclass(frozen=True)
class Life:
    """When a rank was alive; times are seconds since the epoch, by the one clock of all nodes."""

    rank: int
    generation: int
    pod: str
    first: float
    last: float


@dataclass(frozen=True)
class Journal:
    """What ranks have written into ``folder``."""

    folder: Path

    def lives(self) -> list[Life]:
        """Return all lives of ranks, by rank and start."""
        found = []
        for file in self.folder.iterdir():
            rank, generation, pod = file.name.split("_")
            # The last line may be half there.
            beats = [float(line) for line in file.read_text().splitlines()[:-1]]
            if beats:
                found.append(Life(int(rank), int(generation), pod, beats[0], beats[-1]))
        return sorted(found, key=lambda life: (life.rank, life.first))

    def generations(self) -> dict[int, set[int]]:
        """Return the ranks that have lived, by generation."""
        found: dict[int, set[int]] = {}
        for life in self.lives():
            found.setdefault(life.generation, set()).add(life.rank)
        return found

    def overlaps(self) -> list[tuple[Life, Life]]:
        """Return lives of one rank that were lived at the same time."""
        return [
            (one, next_one)
            for one, next_one in pairwise(self.lives())
            if one.rank == next_one.rank and next_one.first <= one.last
        ]


@contextmanager
def journal(cluster: Any, namespace: str, folder: Path) -> Iterator[Journal]:
    """Let pods of ``namespace`` write into ``folder`` of this machine, which all nodes of the harness see."""
    if isinstance(cluster, ExternalCluster):
        pytest.skip("a journal of ranks needs the harness's own cluster")
    folder.mkdir()
    folder.chmod(0o777)
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"journal-{namespace}"},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": _CLAIM},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _CLAIM, "namespace": namespace},
        "spec": {
            **common,
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.apply(volume, claim)
    try:
        yield Journal(folder)
    finally:
        cluster.kubectl("delete", "persistentvolume", volume["metadata"]["name"], "--wait=false")


def journal_group(cluster: Any, namespace: str, replicas: int, program: str = PROGRAM) -> dict[str, Any]:
    """Return a group with real agents whose ranks keep the journal."""
    claim = {"name": _CLAIM, "persistentVolumeClaim": {"claimName": _CLAIM}}
    return python_group(cluster, namespace, replicas, program, {_FOLDER: claim})

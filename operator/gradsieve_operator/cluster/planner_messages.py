"""What the operator and its planner's process say to each other, and how little of it is said anew.

From one question to the next, nodes and most gangs are the same: their bytes are made once, and read once.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from gradsieve_operator.placement import Cluster, Gang, Node

LENGTH = struct.Struct(">Q")
"""What precedes each message: how many bytes it has."""

Plans = dict[str, dict[str, str] | str]
"""Key of a gang -> a node for each of its pods, or what is missing."""


def pack(message: object) -> bytes:
    """Return the bytes of a message."""
    body = _bytes(message)
    return LENGTH.pack(len(body)) + body


class Asker:
    """The operator's end."""

    def __init__(self) -> None:
        self._nodes: tuple[Mapping[str, Node], bytes] = {}, _bytes({})
        self._gangs: dict[str, tuple[Gang, bytes]] = {}

    def question(self, cluster: Cluster, waiting: Iterable[Gang]) -> bytes:
        """Return the bytes of a question."""
        if self._nodes[0] != cluster.nodes:
            self._nodes = cluster.nodes, _bytes(cluster.nodes)
        before = self._gangs
        self._gangs = {
            gang.key: known if (known := before.get(gang.key)) and known[0] is gang else (gang, _bytes(gang))
            for gang in waiting
        }
        gangs = [said for _, said in self._gangs.values()]
        return pack((self._nodes[1], cluster.held, cluster.ending, cluster.guarded, gangs))


class Listener:
    """The process's end."""

    def __init__(self) -> None:
        self._nodes: tuple[bytes, Mapping[str, Node]] = b"", {}
        self._gangs: dict[bytes, Gang] = {}

    def read(self, body: bytes) -> tuple[Cluster, list[Gang]]:
        """Return the cluster and the waiting gangs of a question; what was said before is the same object."""
        nodes, held, ending, guarded, gangs = _read(body)
        if nodes != self._nodes[0]:
            self._nodes = nodes, _read(nodes)
        before = self._gangs
        self._gangs = {said: before.get(said) or _read(said) for said in gangs}
        return Cluster(self._nodes[1], held, ending, guarded), list(self._gangs.values())


def _bytes(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _read(body: bytes) -> Any:
    # What comes here comes from the operator, through a pipe that nobody else has.
    return pickle.loads(body)  # noqa: S301

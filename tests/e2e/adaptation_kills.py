"""An operator that is killed at the writes with which it adapts a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cutting_proxy import Cut, CuttingProxy, Write
from operator_process import OperatorProcess

_KINDS = ("candidate", "plan", "report")


class AdaptationKills:
    """Chooses each kind of write of the loop once before it arrives, and once after.

    A candidate is remembered, a plan is recorded before the coordinator is told, and the status reports it.

    Attributes:
        deaths: the kinds at which the operator was killed, and how.
    """

    def __init__(self) -> None:
        self.deaths: list[tuple[str, Cut]] = []
        self._memory: dict[str, Any] = {}
        self._reported = 0

    def left(self) -> set[tuple[str, Cut]]:
        """Return the kinds that have not come."""
        return {(kind, cut) for kind in _KINDS for cut in Cut} - set(self.deaths)

    def choose(self, write: Write) -> Cut | None:
        """Return how the operator is to die of a write; None for not at all."""
        if not write.path.endswith("/horovodjobs/digits/status"):
            return None
        said = write.body["status"].get("record")
        memory = self._memory if said is None else json.loads(said).get("adaptation") or {}
        kind = self._kind(write, memory)
        cut = next((cut for cut in Cut if (kind, cut) in self.left()), None)
        if cut is not None:
            self.deaths.append((kind, cut))
        if cut is not Cut.BEFORE:
            self._memory = memory
            self._reported = self._generation(write)
        return cut

    def _generation(self, write: Write) -> int:
        return int((write.body["status"].get("plan") or {}).get("generation") or self._reported)

    def _kind(self, write: Write, memory: dict[str, Any]) -> str:
        if memory.get("plan") != self._memory.get("plan"):
            return "plan"
        if memory.get("candidate") and memory.get("candidate") != self._memory.get("candidate"):
            return "candidate"
        return "report" if self._generation(write) > max(self._reported, 1) else ""


@contextmanager
def killing(cluster: Any, operator: OperatorProcess, folder: Path) -> Iterator[AdaptationKills]:
    """Within, the operator is killed at each kind of write, and started again."""
    kills, proxy = AdaptationKills(), CuttingProxy(cluster, operator, folder)
    proxy.choose = kills.choose
    with proxy.running():
        yield kills

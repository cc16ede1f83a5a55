"""What is kept of a node: for the planner, and for judging what pods are lost by. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradsieve_operator import decide, placement
from gradsieve_operator.decide.observed_state import timestamp
from gradsieve_operator.foreign_text import one_line

_MOST_TROUBLES = 4


@dataclass(frozen=True)
class NodeView:
    """A node as the planner and as losses are judged by."""

    planned: placement.Node
    state: decide.Node


def keep_node(raw: Mapping[str, Any]) -> NodeView:
    """Return what is kept of a node."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
    state = decide.Node(
        ready.get("status") == "True", timestamp(ready.get("lastTransitionTime")), _troubles(raw, conditions)
    )
    return NodeView(placement.Node.parse(raw), state)


def _troubles(raw: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what is wrong with a node that may be ready; others than its kubelet report conditions, too."""
    true = (one_line(each["type"]) for each in conditions if each["status"] == "True")
    found = sorted(each for each in true if each != "Ready")
    cordoned = ["cordoned"] if (raw.get("spec") or {}).get("unschedulable") else []
    return tuple([*cordoned, *found][:_MOST_TROUBLES])

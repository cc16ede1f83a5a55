"""The planner's own process: reads questions from its input, and writes answers, until its input ends.

`PlannerProcess` starts it. It imports little, as its memory counts as the operator's.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable
from typing import BinaryIO

from gradsieve_operator.cluster.planner_messages import LENGTH, Listener, Plans, pack
from gradsieve_operator.placement import Assignment, Cluster, Gang, Known, plans_in_turn

_SHARE = 0.25
"""Largest part of a processor that planning takes, however much waits."""

_SHORTEST_PAUSE = 0.005


def plans(
    cluster: Cluster, waiting: Iterable[Gang], share: float = _SHARE, known: Known | None = None
) -> Plans:
    """Plan all gangs in their order, with pauses so that it takes no more than a share of a processor.

    ``known`` is what earlier passes have found; it is brought up to date.
    """
    found: Plans = {}
    began, paused = time.process_time(), 0.0
    for key, plan in plans_in_turn(cluster, waiting, known):
        found[key] = dict(plan.nodes) if isinstance(plan, Assignment) else plan.message
        owed = (time.process_time() - began) * (1.0 / share - 1.0) - paused
        if owed >= _SHORTEST_PAUSE:
            time.sleep(owed)
            paused += owed
    return found


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer each question on ``source``, a cluster and its waiting gangs, on ``sink``."""
    known, listener = Known(), Listener()
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        body = source.read(*LENGTH.unpack(head))
        cluster, waiting = listener.read(body)
        sink.write(pack(plans(cluster, waiting, known=known)))
        sink.flush()


if __name__ == "__main__":
    # Whoever ends the operator from a terminal ends its group; it then closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)

"""Pods of one place of a job, of which only one may count: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradsieve_operator import contract
from gradsieve_operator.decide.observed_state import Pod
from gradsieve_operator.decide.progress import Progress

_MOST_AHEAD = 10**6
"""A job's record may be lost or taken back, but not by so many pods: such a number was never counted."""


def part_surplus(pods: Iterable[Pod], progress: Progress) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """Return the pods that count, and the living ones that are in the way of another one of their place.

    A leader that has stood still may make a pod beside its successor's; somebody may copy one.

    1. A number far above the recorded one is nobody's: such pods never count.
    2. Of several living pods of a place the one counts that was recorded before it was made, as ours are, and
       of several of those the newest: who leads now has recorded more than who led before.

    A surplus pod is in no roster, so that the coordinator does not admit it; see `decide`.
    """
    living: defaultdict[str, list[Pod]] = defaultdict(list)
    counted, surplus = [], []
    for pod in pods:
        if pod.generation > _recorded(pod, progress) + _MOST_AHEAD:
            surplus.append(pod)
        elif pod.alive:
            living[pod.host].append(pod)
        else:
            counted.append(pod)
    for rivals in living.values():
        first, *others = sorted(rivals, key=lambda pod: _standing(pod, progress), reverse=True)
        counted.append(first)
        surplus.extend(others)
    return tuple(counted), tuple(pod for pod in surplus if not pod.deleting)


def _standing(pod: Pod, progress: Progress) -> tuple[bool, int, str]:
    return pod.generation <= _recorded(pod, progress), pod.generation, pod.uid


def _recorded(pod: Pod, progress: Progress) -> int:
    return progress.attempt if pod.role == contract.ROLE_COORDINATOR else progress.generation

"""Who waits for places, whom others have overtaken, and what the last pass over all of them has found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from gradsieve_operator import placement
from gradsieve_operator.cluster.planner_messages import Plans


class Waiting:
    """The gangs that could be created now if they had a place, by key: namespace and name of the job.

    Attributes:
        gangs: key -> gang, as it was last described.
    """

    def __init__(self) -> None:
        self.gangs: dict[str, placement.Gang] = {}
        self._plans: dict[str, tuple[placement.Gang, Mapping[str, str] | str]] = {}
        self._expected: set[str] = set()
        # Who has overtaken whom. With thousands of new jobs there are many pairs, and few who overtake.
        self._passed: defaultdict[str, set[str]] = defaultdict(set)

    def join(self, gang: placement.Gang) -> bool:
        """Take note that a gang waits; returns whether all have to be planned again for it."""
        known, self.gangs[gang.key] = self.gangs.get(gang.key), gang
        return known is None or not _same(known, gang)

    def expect(self, key: str) -> None:
        """Take note that it is no news of a gang that it finds no place: an earlier leader has said so."""
        self._expected.add(key)

    def plan(self, gang: placement.Gang) -> Mapping[str, str] | str | None:
        """Return a node for each pod of a gang or what is missing, None if it was not planned as it is."""
        planned, plan = self._plans.get(gang.key, (None, None))
        return plan if planned is not None and _same(planned, gang) else None

    def planned(self, asked: Mapping[str, placement.Gang], plans: Plans) -> list[str]:
        """Take note of the plans for the gangs that were asked for; returns whom they bring news.

        That something else is missing than before is none: with each pass that would be so for all who wait,
        and a job's status is written again for it when the job is looked at.
        """
        news = []
        for key, gang in asked.items():
            now = self.gangs.get(key)
            if now is not None and _same(now, gang):
                new = self.plan(gang) is None and key not in self._expected
                if new or not isinstance(plans[key], str):
                    news.append(key)
                self._plans[key] = gang, plans[key]
        return news

    def forget_plan(self, key: str) -> None:
        """Take note that the plan for a gang holds no longer."""
        self._plans.pop(key, None)

    def overtaken(self, key: str) -> int:
        """Return how often a waiting gang was overtaken; 0 for others."""
        gang = self.gangs.get(key)
        return 0 if gang is None else gang.overtaken

    def start(self, key: str) -> list[str]:
        """Take note that a gang is about to be created; returns whose being overtaken is to be recorded.

        Those who wait and come before it are overtaken, each by the same one once, however often it tries.
        It makes a difference `placement.PATIENCE` times.
        """
        gang, counted = self.gangs.get(key), []
        self.pause(key)
        for other in () if gang is None else placement.overtaken(gang, self.gangs.values()):
            if other not in self._passed[key]:
                self._passed[key].add(other)
                passed = self.gangs[other]
                self.gangs[other] = replace(passed, overtaken=passed.overtaken + 1)
                if passed.overtaken < placement.PATIENCE:
                    counted.append(other)
        return counted

    def pause(self, key: str) -> bool:
        """Take note that a job does not ask for places now; returns whether it had."""
        self.forget_plan(key)
        self._expected.discard(key)
        return self.gangs.pop(key, None) is not None

    def leave(self, key: str) -> bool:
        """Take note that a job does not wait any more: it has its places, or is no more; as `pause`."""
        self._passed.pop(key, None)
        for overtaken in self._passed.values():
            overtaken.discard(key)
        return self.pause(key)


def _same(one: placement.Gang, other: placement.Gang) -> bool:
    """Whether the plan for one gang is one for the other: its turn may have changed, its pods have not."""
    return replace(one, since=0.0, overtaken=0) == replace(other, since=0.0, overtaken=0)

"""DASP: dynamic adaptive synchronous parallel (METHODS D), rounds that whoever is ready joins.

Source: Ma Xiang, Shen Guowei et al., CAAI Trans. Intelligent Systems 2023(5):1099-1107. Only the abstract is
public: all rules here are **(r)**. Numbers in comments are those of METHODS D.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_hvd.server.events import (
    Action,
    Continue,
    Contribution,
    Discard,
    Event,
    Pushed,
    Release,
    Reply,
    WakeAt,
)
from gradsieve_hvd.server.node_table import Node, NodeTable, Phase, lower_median

from .shares import EQUAL_SHARES, Shares


@dataclass(frozen=True, slots=True)
class Round:
    """The round that began with the newest version.

    length: L, seconds. cut: seconds after which it is released without the missing members; None while not
    armed. members: ranks that it is made for.
    """

    length: float
    cut: float | None
    members: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicAdaptive:
    """Rounds as long as the median worker needs; who is late joins the next one.

    2. Round length L = lower median of the workers' T_i; T_i = lower median of a worker's last 7 iterations
       (unknown: the time elapsed). Members of the round: T_i <= ``member_reach`` · L.
    3. Release when all members that started at this version have pushed, or at L · (1 + c) with at least half
       of them; c = clip(4.5 · MAD/T, 0.08, 0.6). The cut is armed while more than ``long_share`` of the last
       50 iterations of each worker exceed ``long_reach`` · L. A member whose iteration takes longer than
       ``absent_reach`` · L does something else (an evaluation, a collective for which it waits for others),
       and is not waited for.
    4. Late gradients join the next release with weight 1 / (1 + ``damping`` · missed releases), gated.
    5. A worker out of phase waits if the release is nearer than L/2, else it gets fresh weights now.
    6. Fast workers compute another batch at the same weights if it ends within ``another_reach`` · L.
    7. Batches may follow measured speed.
    8. A gradient that has missed more than ``most_missed`` releases is discarded.

    shares: how large the batches are.
    """

    shares: Shares = EQUAL_SHARES
    member_reach: float = 1.25
    long_reach: float = 1.5
    long_share: float = 0.02
    absent_reach: float = 8.0
    scatter_factor: float = 4.5
    narrowest_cut: float = 0.08
    widest_cut: float = 0.6
    damping: float = 0.25
    another_reach: float = 1.1
    most_missed: int = 16

    def decide(self, table: NodeTable, event: Event) -> list[Action]:
        """See `gradsieve_hvd.server.node_table.Mode`."""
        now = event.now
        if not table.active:
            return self._release(table)
        present = self._round(table, now)
        if isinstance(event, Pushed) and self._has_time_for_another(table, event, present):
            return [Continue(event.rank), *self._wake(table, present, now)]
        if self._is_due(table, present, now):
            return [*self._release(table), *self._replies(table), *self._wake_after_release(present, now)]
        if isinstance(event, Pushed) and self._rejoins_now(table, event, present):
            share = self.shares.decide(table)[event.rank]
            return [Reply(event.rank, share), *self._wake(table, present, now)]
        return self._wake(table, present, now)

    def _round(self, table: NodeTable, now: float) -> Round:
        """Rule 2, and rule 3's cut."""
        # Of who has not pushed yet and has rested, the time that has passed says nothing.
        telling = [each for each in table.in_step if each.clock or not each.resumed] or table.active
        length = lower_median([_iteration_seconds(node, now) for node in telling])
        reach = self.member_reach * length
        members = frozenset(node.rank for node in table.active if _keeps_within(node, reach, now))
        return Round(length, self._cut(table, length, now), members)

    def _cut(self, table: NodeTable, length: float, now: float) -> float | None:
        limit = self.long_reach * length
        above = remembered = 0
        for node in table.active:
            long, count = node.iterations_above(limit)
            if node.phase is Phase.COMPUTING and now >= node.began + limit:
                long, count = long + 1, count + 1
            above, remembered = above + long, remembered + count
        known = [node.scatter for node in table.active if node.clock]
        if above <= self.long_share * remembered or not known:
            return None
        scatter = lower_median(known)
        widening = min(max(self.scatter_factor * scatter, self.narrowest_cut), self.widest_cut)
        return length * (1 + widening)

    def _is_due(self, table: NodeTable, present: Round, now: float) -> bool:
        """Rule 3."""
        absent = self.absent_reach * present.length
        started = [
            node
            for node in table.in_step
            if node.rank in present.members
            and node.version == table.version
            and not (node.phase is Phase.COMPUTING and now >= node.began + absent)
        ]
        if not any(node.phase is Phase.COMPUTING for node in started):
            return bool(table.pending) or not table.in_phase(Phase.COMPUTING)
        if present.cut is None or now < table.released + present.cut:
            return False
        return 2 * sum(node.pushed_at == table.version for node in started) >= len(started)

    def _release(self, table: NodeTable) -> list[Action]:
        """Rules 4 and 8."""
        contributions: list[Contribution] = []
        discarded: list[Action] = []
        for push in table.pending.values():
            missed = table.version - push.version
            if missed > self.most_missed:
                discarded.append(Discard(push.number))
            else:
                weight = 1 / (1 + self.damping * missed)
                contributions.append(Contribution(push.number, weight, gated=missed > 0))
        return [*discarded, Release(tuple(contributions))] if contributions else discarded

    def _replies(self, table: NodeTable) -> list[Action]:
        shares = self.shares.decide(table)
        return [Reply(node.rank, shares[node.rank]) for node in table.in_phase(Phase.WAITING)]

    def _has_time_for_another(self, table: NodeTable, push: Pushed, present: Round) -> bool:
        """Rule 6."""
        seconds = table.nodes[push.rank].iteration_seconds
        assert seconds is not None  # it has just pushed
        end = push.now + seconds - table.released
        return push.version == table.version and end <= self.another_reach * present.length

    def _rejoins_now(self, table: NodeTable, push: Pushed, present: Round) -> bool:
        """Rule 5."""
        return push.version < table.version and push.now - table.released <= present.length / 2

    def _wake(self, table: NodeTable, present: Round, now: float) -> list[Action]:
        """Return the next time at which a rule could decide otherwise than now, though nothing happens."""
        computing = table.in_phase(Phase.COMPUTING)
        times = [n.began + self.member_reach * present.length for n in computing if not n.clock]
        if present.cut is None:
            times += [node.began + self.long_reach * present.length for node in computing]
        else:
            times.append(table.released + present.cut)
        times += [node.began + self.absent_reach * present.length for node in computing if node.clock]
        later = [time for time in times if time > now]
        return [WakeAt(min(later))] if later else []

    def _wake_after_release(self, present: Round, now: float) -> list[Action]:
        if not present.length:  # the very first round
            return []
        return [WakeAt(now + (present.cut or self.long_reach * present.length))]


def _iteration_seconds(node: Node, now: float) -> float:
    known = node.iteration_seconds
    return now - node.began if known is None else known


def _keeps_within(node: Node, seconds: float, now: float) -> bool:
    known = node.iteration_seconds
    return now < node.began + seconds if known is None else known <= seconds

"""What the operator has recorded of a job, so that it can be killed at any moment and go on.

It is part of the job's status, and written before what depends on it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve_operator.adapt import Memory
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.values import Mode


@dataclass(frozen=True)
class Progress:
    """A job's own history, as far as decisions depend on it. Times are seconds since the epoch.

    Attributes:
        generation: counts the times that worker pods were made; part of their names.
        attempt: counts coordinators.
        spec_generation: ``metadata.generation`` of the spec that ``origins`` stand for; 0 for none yet.
        origins: digests of the job's present spec, by this and earlier versions of operator and schema.
        given_up: no worker of this generation or before belongs to the placement under way; or is new in its
            place, once the job has started.
        given_up_attempt: no coordinator of this attempt or before belongs to the placement under way.
        restarts: all of them, whatever for.
        failures: restarts for failures of the job's own since it last ran well; what ``backoffLimit`` limits.
        disruptions: the others since then.
        failed_at: when the last of these failures was counted; None before.
        disrupted_at: when the last of these disruptions was.
        waiting_since: when it first asked for places; None while it has them.
        waited_since: when it first asked for the places that it has; None before it has them.
        overtaken: how often a job that came later was placed while it waited.
        placement_failures: placements that failed since the last one that held.
        retry_at: nothing is placed before that time; 0 for at once.
        started: when all pods had got their nodes; None before, and after a suspension.
        running: whether ranks run.
        changed: when ``running`` last changed; None before the first start.
        roster: generation of the last roster; grows whenever its members change.
        members: digest of who is in it.
        absent: hosts whose loss was counted and whose place is not filled yet.
        sizes: group -> replicas that the members were chosen for.
        compression: what ranks go by since the job started; None before, and after a suspension.
        plan: digest of the plan that the coordinator shall have; empty for none.
        plan_generation: of that plan.
        modes: that the program can change to while it runs, as it last said; empty for none, or not yet.
        adaptation: what adaptation remembers; None where it is not enabled.
        finished: when the job ended; None before.
        succeeded: how it ended.
    """

    generation: int = 0
    attempt: int = 0
    spec_generation: int = 0
    origins: tuple[str, ...] = ()
    given_up: int = 0
    given_up_attempt: int = 0
    restarts: int = 0
    failures: int = 0
    disruptions: int = 0
    failed_at: float | None = None
    disrupted_at: float | None = None
    waiting_since: float | None = None
    waited_since: float | None = None
    overtaken: int = 0
    placement_failures: int = 0
    retry_at: float = 0.0
    started: float | None = None
    running: bool = False
    changed: float | None = None
    roster: int = 0
    members: str = ""
    absent: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    compression: Compression | None = None
    plan: str = ""
    plan_generation: int = 0
    modes: tuple[Mode, ...] = ()
    adaptation: Memory | None = None
    finished: float | None = None
    succeeded: bool = False

    @property
    def ran(self) -> bool:
        """Whether ranks have run since the job started."""
        return self.changed is not None

"""What the operator may do next. An action is plain data: deciding does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradsieve_operator.adapt import Hold
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.resources import Manifest


@dataclass(frozen=True)
class IssueCertificates:
    """Make a new authority and write the three Secrets for these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RenewCertificates:
    """Make a further authority, write what is lost with it for these hosts, and have the rest trust it."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class MarkPod:
    """Annotate one incarnation of a pod with what it shall trust, so that its node delivers that at once."""

    name: str
    uid: str
    trust: str


@dataclass(frozen=True)
class Create:
    """Apply the manifest of a child that is not there."""

    manifest: Manifest

    @property
    def name(self) -> str:
        """Name of the child."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class DeletePod:
    """Delete one incarnation of a pod.

    Attributes:
        name: of the pod.
        uid: nothing is deleted when another incarnation has taken the name.
        grace: seconds its containers get; 0 does not wait for the node's word, None leaves it to the pod.
    """

    name: str
    uid: str
    grace: int | None = None


@dataclass(frozen=True)
class AvoidNode:
    """Have the planner leave out a node for a while that did not take a pod that was placed there.

    Attributes:
        group: of the pod; ``coordinator`` for that one.
        node: that did not take it.
        why: in the scheduler's or the node's words.
    """

    group: str
    node: str
    why: str


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, and with it all that it owns."""


@dataclass(frozen=True)
class Record:
    """Write the job's status, and the decision's progress in it, before what follows is done."""


@dataclass(frozen=True)
class PutRoster:
    """Tell the coordinator who takes part."""

    roster: dict[str, Any]


@dataclass(frozen=True)
class PutPlan:
    """Tell the coordinator how ranks should compress."""

    plan: dict[str, Any]


@dataclass(frozen=True)
class Stop:
    """Ask the coordinator to end the ranks; no answer is no obstacle."""

    reason: str


Action = (
    IssueCertificates
    | RenewCertificates
    | MarkPod
    | Create
    | DeletePod
    | AvoidNode
    | DeleteJob
    | Record
    | PutRoster
    | PutPlan
    | Stop
)


@dataclass(frozen=True)
class Reason:
    """One thing to say about the job: a reason in CamelCase and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True)
class Wanted:
    """Pods that need nodes.

    Attributes:
        hosts: of workers, in the order of ranks.
        generation: of these.
        attempt: of a coordinator that needs one, too; None for none.
        partly: whether nodes for the coordinator and the first of the hosts are of use as well.
    """

    hosts: tuple[str, ...]
    generation: int
    attempt: int | None
    partly: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do now, in this order, and what to say.

    Attributes:
        actions: stop at the first that fails; the next decision starts from what was done.
        progress: what holds once they are done.
        admitted: why the job has, or has not yet, all of its places.
        degraded: what is wrong while the job goes on or waits; None when nothing is.
        ended: why it has ended; None while it has not.
        requeue_after: seconds after which to decide anew, even if nothing is seen to change; None for never.
        wanted: what to find nodes for before the same world, with what was found, is decided on; None for
            nothing, which is how it is then.
        held: why adaptation leaves the plan as it is; None if it does not, or was not asked.
    """

    actions: tuple[Action, ...]
    progress: Progress
    admitted: Reason | None = None
    degraded: Reason | None = None
    ended: Reason | None = None
    requeue_after: float | None = field(default=None)
    wanted: Wanted | None = None
    held: Hold | None = None

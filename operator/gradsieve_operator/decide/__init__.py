"""Deciding what to do next for a job from what was just seen: pure, and restartable anywhere."""

from gradsieve_operator.decide.actions import (
    Action,
    AvoidNode,
    Create,
    Decision,
    DeleteJob,
    DeletePod,
    IssueCertificates,
    MarkPod,
    PutPlan,
    PutRoster,
    Reason,
    Record,
    RenewCertificates,
    Stop,
    Wanted,
)
from gradsieve_operator.decide.adapting import RUN_TIME_MODES, plan_to_follow
from gradsieve_operator.decide.creation import first_pods, last_pods
from gradsieve_operator.decide.decision import decide
from gradsieve_operator.decide.effective_compression import effective_compression
from gradsieve_operator.decide.members import silence_limit
from gradsieve_operator.decide.observed_state import (
    CoordinatorStatus,
    Node,
    ObservedState,
    Places,
    Pod,
    Unplaceable,
    read_pod,
)
from gradsieve_operator.decide.pace import Pace
from gradsieve_operator.decide.places import Placer, find_places
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.surplus import part_surplus

__all__ = [
    "RUN_TIME_MODES",
    "Action",
    "AvoidNode",
    "CoordinatorStatus",
    "Create",
    "Decision",
    "DeleteJob",
    "DeletePod",
    "IssueCertificates",
    "MarkPod",
    "Node",
    "ObservedState",
    "Pace",
    "Placer",
    "Places",
    "Pod",
    "Progress",
    "PutPlan",
    "PutRoster",
    "Reason",
    "Record",
    "RenewCertificates",
    "Stop",
    "Unplaceable",
    "Wanted",
    "decide",
    "effective_compression",
    "find_places",
    "first_pods",
    "last_pods",
    "part_surplus",
    "plan_to_follow",
    "read_pod",
    "silence_limit",
]

"""The schema of HorovodJob's spec, with the rules that the API server checks."""

from __future__ import annotations

from gradsieve_operator.schema.compression import bounds_rule, job_compression
from gradsieve_operator.schema.parts import Schema, fields, flag, items, number, rules, text, word
from gradsieve_operator.schema.pod_template import pod_template_schema
from gradsieve_operator.schema.steering import steering
from gradsieve_operator.spec.groups import MAX_CONTAINERS
from gradsieve_operator.spec.values import (
    BACKENDS,
    CLEAN_POD_POLICIES,
    DNS_LABEL,
    GANGS,
    LABEL_VALUE,
    MAX_BACKOFF,
    MAX_GPU_PRODUCTS,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_LABEL_VALUE,
    MAX_OBJECT_NAME,
    MAX_SECONDS,
    MAX_SLOTS,
    MAX_WORKERS,
    OBJECT_NAME,
    PLACEMENTS,
    RESERVED_GROUP,
)

_MAX_WORDS, _MAX_WORD = 256, 4096  # of a command; what CEL's cost is estimated from

_NEVER = "false"
"""The rule of a field that no job may have: it is asked only where there is one."""

# Of the template as a whole these would cost as much for a job that has none of these fields: the API server
# asks all rules of a job whenever its status is written, and copies the schema of an object's fields, some
# forty of a pod's, each time that a rule names one of them.
_POD_RULES = {
    **dict.fromkeys(
        ("hostname", "subdomain"),
        (_NEVER, "hostname and subdomain are set by the operator: remove them"),
    ),
    "nodeName": (_NEVER, "nodeName is set by the operator: choose nodes by nodeSelector or affinity"),
    "restartPolicy": ("self == 'Never'", "restartPolicy must be Never: the operator replaces workers"),
    "schedulingGates": (_NEVER, "schedulingGates are not supported: hold the job back with suspend"),
}
_COMMAND_RULE = (
    "has(self[0].command) && self[0].command.size() > 0 && self[0].command[0] != ''",
    "the first container must name its command: it is the program that every rank runs",
)
_UNCHANGED = {
    "runPolicy": "self.runPolicy == oldSelf.runPolicy",
    "scheduling": "self.scheduling == oldSelf.scheduling",
    "launcher": "self.launcher == oldSelf.launcher",
    "compression.algorithm": (
        "has(self.compression) && has(self.compression.algorithm) ? "
        "has(oldSelf.compression) && has(oldSelf.compression.algorithm) && "
        "self.compression.algorithm == oldSelf.compression.algorithm : "
        "!has(oldSelf.compression) || !has(oldSelf.compression.algorithm)"
    ),
    # Both directions: comparing groups of one name alone would let a group be removed.
    "the set of workerGroups": (
        "self.workerGroups.size() == oldSelf.workerGroups.size() && "
        "self.workerGroups.all(g, oldSelf.workerGroups.exists(o, o.name == g.name))"
    ),
    "slotsPerWorker, minReplicas and template of a group": (
        "self.workerGroups.all(g, oldSelf.workerGroups.all(o, o.name != g.name || ("
        "o.slotsPerWorker == g.slotsPerWorker && has(o.minReplicas) == has(g.minReplicas) && "
        "(!has(o.minReplicas) || o.minReplicas == g.minReplicas) && o.template == g.template)))"
    ),
    "replicas of a group without minReplicas": (
        "self.workerGroups.all(g, has(g.minReplicas) || "
        "oldSelf.workerGroups.all(o, o.name != g.name || o.replicas == g.replicas))"
    ),
}


def job_spec() -> Schema:
    """Return the schema of ``spec``."""
    properties = {
        "suspend": flag("Hold the job back, or stop it: its pods are deleted.", default=False),
        "runPolicy": _run_policy(),
        "scheduling": _scheduling(),
        "launcher": _launcher(),
        "workerGroups": _worker_groups(),
        "compression": job_compression(),
        **steering(),
    }
    bounds, said = bounds_rule("self.compression")
    return fields(
        "What the job shall be. While it is not suspended, only replicas (of groups with minReplicas), the "
        "densities, policyRef, parallelism, adaptation and suspend may change.",
        properties,
        required=["workerGroups"],
        **rules(
            (f"!has(self.compression) || {bounds}", said),
            *(
                (
                    f"self.suspend || oldSelf.suspend || ({same})",
                    f"{what} may change only while the job is suspended",
                )
                for what, same in _UNCHANGED.items()
            ),
        ),
    )


def _all_replicas() -> str:
    # Written out: for a sum over a list made by map() Kubernetes 1.29 estimates a cost without a limit.
    total = "0"
    for index in reversed(range(MAX_GROUPS)):
        total = f"(self.size() > {index} ? self[{index}].replicas + {total} : 0)"
    return total


def _equal_in_all_groups(part: str) -> str:
    # CEL's estimate of costs knows no limit behind optional fields (`.?args.orValue([])`): hence has().
    first, each = (f"{group}.template.spec.containers[0].{part}" for group in ("self[0]", "g"))
    equal = f"self.all(g, has({each}) ? has({first}) && {each} == {first} : !has({first}))"
    return f"self.size() == 1 || {equal}"


def _run_policy() -> Schema:
    return fields(
        "How long the job may take, how often it may fail, and what it leaves behind.",
        {
            "cleanPodPolicy": word("Pods deleted when it has ended.", CLEAN_POD_POLICIES, default="Running"),
            "backoffLimit": number(
                "Failures of its own after which it is started again; evictions and lost nodes are free.",
                0,
                MAX_BACKOFF,
                default=3,
            ),
            "activeDeadlineSeconds": number("Longest time from start to end.", 1, MAX_SECONDS),
            "preRunningDeadlineSeconds": number("Longest time from start to running ranks.", 1, MAX_SECONDS),
            "ttlSecondsAfterFinished": number("Time from its end to its deletion.", 0, MAX_SECONDS),
            "nodeLostSeconds": number(
                "A node not ready for so long has lost its pods.", 1, MAX_SECONDS, default=60
            ),
        },
        default={},
    )


def _scheduling() -> Schema:
    product = text("Value of the node label.", longest=MAX_LABEL_VALUE, pattern=LABEL_VALUE)
    queue = text(
        "Kueue's queue: Kueue admits the pods, the operator plans nothing.",
        longest=MAX_LABEL_VALUE,
        pattern=OBJECT_NAME,
    )
    return fields(
        "Where and when the pods are placed.",
        {
            "gang": word("Planned: all pods or none. None: each for itself.", GANGS, default="Planned"),
            "queueName": queue,
            "priorityClassName": text("Of all pods.", longest=MAX_OBJECT_NAME, pattern=OBJECT_NAME),
            "placement": word(
                "Fastest: few nodes, best GPUs. Pack: fullest nodes. Spread: many nodes.",
                PLACEMENTS,
                default="Fastest",
            ),
            "gpuProducts": items(
                "GPUs that may be used (node label nvidia.com/gpu.product), best first; left out: any.",
                product,
                most=MAX_GPU_PRODUCTS,
                kind="set",
            ),
            "scheduleTimeoutSeconds": number("Longest wait for a place; then it fails.", 1, MAX_SECONDS),
        },
        default={},
    )


def _launcher() -> Schema:
    template = {"description": "Of the coordinator's pod; left out: like the first group's."}
    return fields(
        "How ranks are started.",
        {
            "backend": word("MPI, or Gloo: survivors go on in place.", BACKENDS, default="MPI"),
            "template": {**_template(), **template},
        },
        default={},
    )


def _worker_groups() -> Schema:
    template = {**_template(), "description": "Of the workers' pods; the first container runs the training."}
    template["properties"]["spec"]["properties"]["containers"].update(rules(_COMMAND_RULE))
    name = text(
        "Its name, a part of the pods' names.",
        longest=MAX_GROUP_NAME,
        pattern=DNS_LABEL,
        **rules((f"self != '{RESERVED_GROUP}'", f"{RESERVED_GROUP!r} is the name of the job's own pod")),
    )
    group = fields(
        "Equal workers.",
        {
            "name": name,
            "replicas": number("How many.", 1, MAX_WORKERS),
            "minReplicas": number(
                "With how many the job goes on; left out: with all of them.", 1, MAX_WORKERS
            ),
            "slotsPerWorker": number("Ranks in each worker.", 1, MAX_SLOTS, default=1),
            "template": template,
        },
        required=["name", "replicas", "template"],
        **rules(
            (
                "!has(self.minReplicas) || self.minReplicas <= self.replicas",
                "minReplicas must be at most replicas",
            )
        ),
    )
    return items(
        "Groups of equal workers.",
        group,
        most=MAX_GROUPS,
        kind="map",
        minItems=1,
        **{"x-kubernetes-list-map-keys": ["name"]},
        **rules(
            (
                f"{_all_replicas()} <= {MAX_WORKERS}",
                f"a job has at most {MAX_WORKERS} workers in all groups together",
            ),
            (
                _equal_in_all_groups("command"),
                "the first containers of all groups must have the same command: ranks run one program",
            ),
            (
                _equal_in_all_groups("args"),
                "the first containers of all groups must have the same args: ranks run one program",
            ),
        ),
    )


def _template() -> Schema:
    """Return the pod template's schema with its rules, and the limits that CEL's estimate of costs needs."""
    schema = pod_template_schema()
    pod = schema["properties"]["spec"]["properties"]
    for name, rule in _POD_RULES.items():
        pod[name].update(rules(rule))
    containers = pod["containers"]
    containers.update(minItems=1, maxItems=MAX_CONTAINERS)
    for part in ("command", "args"):
        words = containers["items"]["properties"][part]
        words["maxItems"] = _MAX_WORDS
        words["items"]["maxLength"] = _MAX_WORD
    return schema

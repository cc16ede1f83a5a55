"""HorovodJob as the operator works with it: parsed, checked, defaults applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradsieve_operator.spec.compression import JobCompression
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.groups import WorkerGroup, check_plannable, check_template
from gradsieve_operator.spec.steering import SteeringFields
from gradsieve_operator.spec.values import (
    BACKENDS,
    CLEAN_POD_POLICIES,
    DNS_LABEL,
    GANGS,
    LABEL_VALUE,
    MAX_BACKOFF,
    MAX_GPU_PRODUCTS,
    MAX_GROUPS,
    MAX_JOB_NAME,
    MAX_LABEL_VALUE,
    MAX_OBJECT_NAME,
    MAX_SECONDS,
    MAX_WORKERS,
    OBJECT_NAME,
    PLACEMENTS,
    Backend,
    CleanPodPolicy,
    Gang,
    Placement,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """How long a job may take, how often it may fail, and what it leaves behind. Times in seconds.

    clean_pod_policy: which pods are deleted when the job has ended.
    backoff_limit: how many restarts after failures; the next one fails the job.
    active_deadline: from the job's start to its end; a suspension starts it anew.
    pre_running_deadline: from the job's start to the first running rank.
    ttl_after_finished: the job is deleted that long after its end.
    node_lost: a node that is not ready for so long has lost its pods.
    """

    clean_pod_policy: CleanPodPolicy = "Running"
    backoff_limit: int = 3
    active_deadline: int | None = None
    pre_running_deadline: int | None = None
    ttl_after_finished: int | None = None
    node_lost: int = 60

    @classmethod
    def parse(cls, source: Fields) -> RunPolicy:
        """Read ``spec.runPolicy``.

        Raises:
            SpecError: a value is not allowed.
        """
        return cls(
            clean_pod_policy=source.word_or("cleanPodPolicy", "Running", CLEAN_POD_POLICIES),
            backoff_limit=source.number_or("backoffLimit", 3, 0, MAX_BACKOFF),
            active_deadline=source.number("activeDeadlineSeconds", 1, MAX_SECONDS),
            pre_running_deadline=source.number("preRunningDeadlineSeconds", 1, MAX_SECONDS),
            ttl_after_finished=source.number("ttlSecondsAfterFinished", 0, MAX_SECONDS),
            node_lost=source.number_or("nodeLostSeconds", 60, 1, MAX_SECONDS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Where and when a job's pods are placed.

    gang: ``"Planned"``: all pods or none, on nodes that the operator chooses; ``"None"``: each for itself.
    queue_name: Kueue's queue; then Kueue admits the pods and the operator does not plan.
    priority_class_name: of all pods; also the job's place among waiting jobs.
    placement: what the planner prefers among the placements that are possible.
    gpu_products: the GPUs that may be used (label nvidia.com/gpu.product), best first; empty: any.
    schedule_timeout: seconds after which a job that was not admitted fails.
    """

    gang: Gang = "Planned"
    queue_name: str | None = None
    priority_class_name: str | None = None
    placement: Placement = "Fastest"
    gpu_products: tuple[str, ...] = ()
    schedule_timeout: int | None = None

    @property
    def planned(self) -> bool:
        """Whether the operator's planner chooses the nodes."""
        return self.gang == "Planned" and self.queue_name is None

    @classmethod
    def parse(cls, source: Fields) -> Scheduling:
        """Read ``spec.scheduling``.

        Raises:
            SpecError: a value is not allowed.
        """
        products = source.items("gpuProducts", MAX_GPU_PRODUCTS)
        for index, product in enumerate(products):
            if not isinstance(product, str) or not LABEL_VALUE.fullmatch(product):
                raise source.error(
                    f"gpuProducts[{index}]",
                    f"is {product!r}; it must be a value of the node label nvidia.com/gpu.product",
                )
        return cls(
            gang=source.word_or("gang", "Planned", GANGS),
            queue_name=source.name("queueName", OBJECT_NAME, MAX_LABEL_VALUE),
            priority_class_name=source.name("priorityClassName", OBJECT_NAME, MAX_OBJECT_NAME),
            placement=source.word_or("placement", "Fastest", PLACEMENTS),
            gpu_products=tuple(dict.fromkeys(products)),
            schedule_timeout=source.number("scheduleTimeoutSeconds", 1, MAX_SECONDS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How ranks are started.

    backend: ``"MPI"``: mpirun; ``"Gloo"``: Horovod's own rendezvous, survivors go on in place.
    template: PodTemplateSpec of the coordinator's pod; None: like the first group's.
    """

    backend: Backend = "MPI"
    template: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, source: Fields) -> Launcher:
        """Read ``spec.launcher``.

        Raises:
            SpecError: a value is not allowed.
        """
        template = None
        if source.has("template"):
            check_template(source.object("template"))
            template = source.object("template").values
        return cls(backend=source.word_or("backend", "MPI", BACKENDS), template=template)


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodJob:
    """A training job as its author wants it.

    generation: ``metadata.generation``, which status.observedGeneration repeats.
    created: ``metadata.creationTimestamp``, RFC 3339.
    deleted: whether deletion has begun.
    compression: None: the training program's own settings hold and the operator steers nothing.
    steering: what the job itself says about parallelism and adaptation.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleted: bool
    suspend: bool
    run_policy: RunPolicy
    scheduling: Scheduling
    launcher: Launcher
    groups: tuple[WorkerGroup, ...]
    compression: JobCompression | None
    steering: SteeringFields = field(default_factory=SteeringFields)

    @property
    def workers(self) -> int:
        """How many workers there shall be in all groups."""
        return sum(group.replicas for group in self.groups)

    @property
    def slots(self) -> int:
        """How many ranks there shall be in all groups."""
        return sum(group.replicas * group.slots_per_worker for group in self.groups)

    @property
    def command(self) -> tuple[str, ...]:
        """The training command, which is the same in all groups."""
        return self.groups[0].command

    @classmethod
    def outline(cls, body: Mapping[str, Any]) -> HorovodJob:
        """Read all but groups, launcher and compression: what a job whose templates are wrong is held by.

        Raises:
            SpecError: a field of the rest has a value that is not allowed.
        """
        metadata, spec = Fields.of(body.get("metadata"), "metadata"), Fields.of(body.get("spec"), "spec")
        name = metadata.name("name", DNS_LABEL, MAX_JOB_NAME)
        if name is None:
            raise metadata.missing("name", "how the job's pods and its Service are called")
        return cls(
            namespace=str(metadata.values.get("namespace", "")),
            name=name,
            uid=str(metadata.values.get("uid", "")),
            generation=metadata.number_or("generation", 0, 0, 2**63 - 1),
            created=str(metadata.values.get("creationTimestamp") or ""),
            deleted=metadata.has("deletionTimestamp"),
            suspend=spec.flag("suspend", default=False),
            run_policy=RunPolicy.parse(spec.object("runPolicy")),
            scheduling=Scheduling.parse(spec.object("scheduling")),
            launcher=Launcher(),
            groups=(),
            compression=None,
        )

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> HorovodJob:
        """Read the object that the API server returns.

        Raises:
            SpecError: a field is missing, its value is not allowed, or fields contradict one another.
        """
        spec = Fields.of(body.get("spec"), "spec")
        steering = SteeringFields.parse(spec)
        compression = None
        if spec.has("compression"):
            compression = JobCompression.parse(spec.object("compression"), adapted=steering.adapts)
        job = replace(
            cls.outline(body),
            launcher=Launcher.parse(spec.object("launcher")),
            groups=tuple(
                WorkerGroup.parse(Fields.of(item, spec.at(f"workerGroups[{index}]")))
                for index, item in enumerate(spec.items("workerGroups", MAX_GROUPS))
            ),
            compression=compression,
            steering=steering,
        )
        _check_groups(job, spec)
        if job.scheduling.planned:
            check_plannable(spec.object("launcher").object("template"))
            for index, group in enumerate(job.groups):
                check_plannable(Fields(group.template, spec.at(f"workerGroups[{index}].template")))
        return job


def _check_groups(job: HorovodJob, spec: Fields) -> None:
    if not job.groups:
        raise spec.error("workerGroups", "is empty; a job needs at least one group")
    name, times = Counter(group.name for group in job.groups).most_common(1)[0]
    if times > 1:
        raise spec.error("workerGroups", f"{times} groups are named {name!r}; names must differ")
    if job.workers > MAX_WORKERS:
        raise spec.error("workerGroups", f"ask for {job.workers} workers; a job has at most {MAX_WORKERS}")
    for index, group in enumerate(job.groups):
        if group.command != job.command:
            raise spec.error(
                f"workerGroups[{index}].template.spec.containers[0].command",
                "and args must be those of the first group: all ranks run one program (env may differ)",
            )

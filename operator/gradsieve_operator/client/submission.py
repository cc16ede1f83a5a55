"""A HorovodJob and its program's ConfigMap from what the command line of ``gradsieve submit`` says: pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.placement.eligibility import GPU_PRODUCT
from gradsieve_operator.spec import HorovodJob
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.groups import MAX_CONTAINERS
from gradsieve_operator.spec.values import MAX_JOB_NAME

Manifest = dict[str, Any]
"""An object of the API."""

GROUP_NAME = "workers"
FOLDER = "/workspace"
GPUS = "nvidia.com/gpu"
MOST_BYTES = 1024 * 1024
"""What the API server keeps in one ConfigMap: names and contents together."""

_PROGRAM_VOLUME = "program"
_MOST_VOLUMES, _MOST_VARIABLES = 1000, 1000
_NOT_IN_NAMES = re.compile("[^a-z0-9]+")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LONGEST_STEM = MAX_JOB_NAME - len("-program")


class SubmissionError(OperatorError):
    """What was asked for makes no job; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What was asked for.

    Attributes:
        name: of the job.
        namespace: of the job.
        program: file name of what every rank runs.
        files: file name -> text, the program's among them.
        arguments: of the program.
        image: that ranks train in; empty for that of the template.
        workers: how many.
        slots: ranks in each worker.
        min_workers: with how many the job goes on; None for all of them.
        retries: how often it is started again after failures; None for the API's default.
        gpu_products: GPUs that may be used, best first; empty for a training on CPUs.
        resources: requests of each worker, by resource.
        environment: variables of every rank.
        backend: MPI or Gloo.
        compression: fields of ``spec.compression``; empty leaves compression to the program.
        template: PodTemplateSpec to start from.
    """

    name: str
    namespace: str
    program: str
    files: Mapping[str, str]
    arguments: Sequence[str] = ()
    image: str = ""
    workers: int = 1
    slots: int = 1
    min_workers: int | None = None
    retries: int | None = None
    gpu_products: Sequence[str] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    backend: str = "MPI"
    compression: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config_map_name(self) -> str:
        """The ConfigMap's name."""
        return f"{self.name}-program"


def job_name(program: str) -> str:
    """Return what a job is called that runs ``program`` and was given no name."""
    stem = _NOT_IN_NAMES.sub("-", PurePath(program).stem.lower())[:_LONGEST_STEM].strip("-")
    return stem if stem[:1].isalpha() else f"job-{stem}".strip("-")


def config_map(submission: Submission, owner: str | None = None) -> Manifest:
    """Return the ConfigMap with the program.

    Args:
        submission: what was asked for.
        owner: UID of the job that it belongs to; None before there is a job.

    Raises:
        SubmissionError: it is larger than the API server allows, or a file's name cannot be kept.
    """
    for name in submission.files:
        if not _KEY.fullmatch(name):
            raise SubmissionError(
                f"{name!r} cannot be the name of a file in a ConfigMap: letters, digits, '-', '_' and '.' can"
            )
    size = sum(len(name.encode()) + len(text.encode()) for name, text in submission.files.items())
    if size > MOST_BYTES:
        raise SubmissionError(
            f"program and files have {size} bytes; a ConfigMap holds {MOST_BYTES}. Put what is large into "
            "the image or onto a volume (--template), and submit only the program that reads it"
        )
    metadata: Manifest = {"name": submission.config_map_name, "namespace": submission.namespace}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": contract.API_VERSION,
                "kind": contract.JOB_KIND,
                "name": submission.name,
                "uid": owner,
            }
        ]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(submission.files)}


def job(submission: Submission) -> Manifest:
    """Return the HorovodJob.

    Raises:
        SpecError: a field has a value that is not allowed.
        SubmissionError: nothing says which image to train in.
    """
    group: Manifest = {
        "name": GROUP_NAME,
        "replicas": submission.workers,
        "slotsPerWorker": submission.slots,
        "template": _template(submission),
    }
    if submission.min_workers is not None:
        group["minReplicas"] = submission.min_workers
    spec: Manifest = {"launcher": {"backend": submission.backend}, "workerGroups": [group]}
    if submission.retries is not None:
        spec["runPolicy"] = {"backoffLimit": submission.retries}
    if submission.gpu_products:
        spec["scheduling"] = {"gpuProducts": list(submission.gpu_products)}
    if submission.compression:
        spec["compression"] = dict(submission.compression)
    manifest = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.JOB_KIND,
        "metadata": {"name": submission.name, "namespace": submission.namespace},
        "spec": spec,
    }
    # What the operator would refuse is refused here, with the same words.
    HorovodJob.parse(manifest)
    return manifest


def products(wanted: Sequence[str], present: Sequence[str]) -> list[str]:
    """Return which GPUs are meant: exact products, or all with a word of their name (``A100``), best first.

    Args:
        wanted: what was asked for, best first.
        present: values of the node label ``nvidia.com/gpu.product`` in the cluster.

    Raises:
        SubmissionError: no node has such a GPU.
    """
    found: list[str] = []
    for word in wanted:
        exact = [product for product in present if product == word]
        named = [product for product in sorted(set(present)) if word.lower() in product.lower().split("-")]
        if not exact and not named:
            known = ", ".join(sorted(set(present))) or "none"
            raise SubmissionError(
                f"no node has a GPU {word!r} (node label {GPU_PRODUCT}); there are: {known}"
            )
        found += exact[:1] or named
    return list(dict.fromkeys(found))


def _template(submission: Submission) -> Manifest:
    _check_objects(submission.template)
    template = copy.deepcopy(dict(submission.template))
    pod = template.setdefault("spec", {})
    pod.setdefault("securityContext", {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}})
    containers = pod.setdefault("containers", [{}])
    if not containers:
        containers.append({})
    container = containers[0]
    container.setdefault("name", "train")
    if submission.image:
        container["image"] = submission.image
    if not container.get("image"):
        raise SubmissionError(
            "say which image to train in: --image, GRADSIEVE_IMAGE or a --template with one"
        )
    container["command"] = ["python3", f"{FOLDER}/{submission.program}", *submission.arguments]
    container.pop("args", None)
    variables = [{"name": name, "value": value} for name, value in submission.environment.items()]
    kept = [each for each in container.get("env") or () if each.get("name") not in submission.environment]
    if kept or variables:
        container["env"] = [*kept, *variables]
    _ask_for(container, submission)
    container.setdefault(
        "securityContext",
        {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": _PROGRAM_VOLUME, "mountPath": FOLDER, "readOnly": True},
    ]
    pod["volumes"] = [
        *(pod.get("volumes") or ()),
        {"name": _PROGRAM_VOLUME, "configMap": {"name": submission.config_map_name}},
    ]
    return template


def _check_objects(template: Mapping[str, Any]) -> None:
    """Check that what is added to is there to be added to; the rest is read with the whole job."""
    pod = Fields.of(template, "template").object("spec")
    pod.items("volumes", _MOST_VOLUMES)
    for index, each in enumerate(pod.items("containers", MAX_CONTAINERS)):
        container = Fields.of(each, pod.at(f"containers[{index}]"))
        container.items("volumeMounts", _MOST_VOLUMES)
        container.object("resources").object("requests")
        container.object("resources").object("limits")
        for at, variable in enumerate(container.items("env", _MOST_VARIABLES)):
            Fields.of(variable, container.at(f"env[{at}]"))


def _ask_for(container: Manifest, submission: Submission) -> None:
    """Add the resources that were asked for; memory is limited to what is requested, GPUs are counted."""
    amounts = {name: amount for name, amount in submission.resources.items() if amount}
    resources = container.setdefault("resources", {})
    if amounts:
        resources["requests"] = {**(resources.get("requests") or {}), **amounts}
    limits = {name: amount for name, amount in amounts.items() if name == "memory"}
    if submission.gpu_products:
        limits[GPUS] = str(submission.slots)
    if limits:
        resources["limits"] = {**(resources.get("limits") or {}), **limits}

"""HorovodJob is read with its defaults, and refused with a message that names the field."""

import copy

import pytest

from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec import HorovodJob

CONTAINER = {"name": "train", "image": "train:1", "command": ["python3"], "args": ["train.py"]}


def group(name="workers", **fields):
    template = {"spec": {"containers": [copy.deepcopy(CONTAINER)]}}
    return {"name": name, "replicas": 2, "template": template, **fields}


def body(*groups, **spec):
    metadata = {"name": "digits", "namespace": "team", "uid": "u1", "generation": 3}
    return {"metadata": metadata, "spec": {"workerGroups": list(groups) or [group()], **spec}}


def refusal(manifest) -> SpecError:
    with pytest.raises(SpecError) as caught:
        HorovodJob.parse(manifest)
    return caught.value


def test_a_minimal_job_gets_every_default():
    job = HorovodJob.parse(body())
    assert (job.namespace, job.name, job.uid, job.generation) == ("team", "digits", "u1", 3)
    assert not job.suspend
    assert not job.deleted
    assert job.run_policy.clean_pod_policy == "Running"
    assert (job.run_policy.backoff_limit, job.run_policy.node_lost) == (3, 60)
    assert job.run_policy.active_deadline is None
    assert job.scheduling.planned
    assert job.scheduling.placement == "Fastest"
    assert job.launcher.backend == "MPI"
    assert job.groups[0].slots_per_worker == 1
    assert job.compression is None


def test_workers_and_slots_add_up_over_the_groups():
    job = HorovodJob.parse(body(group("a", replicas=2, slotsPerWorker=4), group("b", replicas=3)))
    assert (job.workers, job.slots) == (5, 11)


def test_the_training_command_is_the_first_container_s_command_and_args():
    assert HorovodJob.parse(body()).command == ("python3", "train.py")


def test_a_group_without_min_replicas_needs_all_of_them():
    job = HorovodJob.parse(body(group("a", replicas=4), group("b", replicas=4, minReplicas=2)))
    assert [group.least for group in job.groups] == [4, 2]


def test_a_job_in_a_queue_is_not_planned():
    assert not HorovodJob.parse(body(scheduling={"queueName": "team"})).scheduling.planned
    assert not HorovodJob.parse(body(scheduling={"gang": "None"})).scheduling.planned


def test_null_is_the_same_as_an_absent_field():
    assert HorovodJob.parse(body(runPolicy=None, compression=None)) == HorovodJob.parse(body())


def with_spec(**fields):
    manifest = group()
    manifest["template"]["spec"].update(fields)
    return body(manifest)


def with_container(**fields):
    return with_spec(containers=[{**CONTAINER, **fields}])


REFUSED = [
    ("metadata.name", {**body(), "metadata": {"name": "1digits"}}),
    ("metadata.name", {**body(), "metadata": {"name": "a" * 64}}),
    ("metadata.name", {**body(), "metadata": {}}),
    ("spec", {"metadata": {"name": "digits"}, "spec": None}),
    ("spec.suspend", body(suspend="yes")),
    ("spec.workerGroups", {**body(), "spec": {"workerGroups": []}}),
    ("spec.workerGroups", {**body(), "spec": {"workerGroups": "workers"}}),
    ("spec.workerGroups", body(group("a"), group("a"))),
    ("spec.workerGroups", body(group("a", replicas=200), group("b", replicas=200))),
    ("spec.workerGroups[0].name", body(group("A100"))),
    ("spec.workerGroups[0].name", body(group("coordinator"))),
    ("spec.workerGroups[0].replicas", body(group(replicas=0))),
    ("spec.workerGroups[0].replicas", body(group(replicas=None))),
    ("spec.workerGroups[1].minReplicas", body(group("a"), group("b", minReplicas=3))),
    ("spec.workerGroups[0].slotsPerWorker", body(group(slotsPerWorker=0))),
    ("spec.workerGroups[0].template", body(group(template=None))),
    ("spec.workerGroups[0].template.spec.containers", with_spec(containers=[])),
    ("spec.workerGroups[0].template.spec.containers[0].command", with_container(command=None)),
    ("spec.workerGroups[0].template.spec.hostname", with_spec(hostname="h")),
    ("spec.workerGroups[0].template.spec.nodeName", with_spec(nodeName="n")),
    ("spec.workerGroups[0].template.spec.restartPolicy", with_spec(restartPolicy="Always")),
    (
        "spec.workerGroups[0].template.spec.containers[0].resources.limits.cpu",
        with_container(resources={"limits": {"cpu": "2 cores"}}),
    ),
    (
        "spec.workerGroups[0].template.spec.containers[0].resources.requests.memory",
        with_container(resources={"requests": {"memory": "-1Gi"}}),
    ),
    (
        "spec.workerGroups[0].template.spec.containers[0].env[0].name",
        with_container(env=[{"name": "GRADSIEVE_JOB", "value": "other"}]),
    ),
    ("spec.runPolicy.cleanPodPolicy", body(runPolicy={"cleanPodPolicy": "Some"})),
    ("spec.runPolicy.backoffLimit", body(runPolicy={"backoffLimit": -1})),
    ("spec.runPolicy.nodeLostSeconds", body(runPolicy={"nodeLostSeconds": 1.5})),
    ("spec.scheduling.gang", body(scheduling={"gang": "Native"})),
    ("spec.scheduling.queueName", body(scheduling={"queueName": "Team A"})),
    ("spec.scheduling.gpuProducts[0]", body(scheduling={"gpuProducts": ["A 100"]})),
    ("spec.launcher.backend", body(launcher={"backend": "NCCL"})),
    ("spec.launcher.template.spec.containers", body(launcher={"template": {"spec": {}}})),
    ("spec.compression.algorithm", body(compression={"algorithm": "Auto"})),
    ("spec.compression.densityPermille", body(compression={"densityPermille": 0})),
    ("spec.compression.policyRef.name", body(compression={"policyRef": {}})),
]


@pytest.mark.parametrize(("field", "manifest"), REFUSED, ids=[f"{n}-{f}" for n, (f, _) in enumerate(REFUSED)])
def test_a_wrong_field_is_named(field, manifest):
    error = refusal(manifest)
    assert error.field == field
    assert len(error.problem) > 10


def test_groups_with_different_programs_are_refused():
    other = group("b")
    other["template"]["spec"]["containers"][0]["args"] = ["other.py"]
    error = refusal(body(group("a"), other))
    assert error.field == "spec.workerGroups[1].template.spec.containers[0].command"


def test_groups_may_differ_in_image_and_environment():
    other = group("b")
    other["template"]["spec"]["containers"][0].update(image="train:t4", env=[{"name": "X", "value": "1"}])
    assert HorovodJob.parse(body(group("a"), other)).workers == 4


SPREAD = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("topologySpreadConstraints[0]", {"topologySpreadConstraints": [SPREAD]}),
        ("resourceClaims", {"resourceClaims": [{"name": "gpu"}]}),
        ("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution", {"affinity": APART}),
    ],
)
def test_what_the_planner_does_not_look_at_is_refused_unless_nothing_is_planned(field, asked):
    manifest = with_spec(**asked)
    assert refusal(manifest).field == f"spec.workerGroups[0].template.spec.{field}"
    manifest["spec"]["scheduling"] = {"gang": "None"}
    assert HorovodJob.parse(manifest).workers == 2


def test_preferences_between_pods_are_left_to_the_scheduler():
    soft = {**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}
    near = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    assert HorovodJob.parse(with_spec(topologySpreadConstraints=[soft], affinity=near)).workers == 2

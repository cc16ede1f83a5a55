"""A training notices nothing of all that Helm does to its operator, in the order of these tests.

An operator that was installed with the last plain manifests before the chart is taken over, tested, upgraded,
rolled back and uninstalled, and a release of another name, namespace and scope adopts the job.
"""

import json
import uuid
from pathlib import Path

import pytest
import yaml
from cluster.external import ExternalCluster, skip
from helm_chart import CHART, MANIFESTS, NAMESPACE, ROOT, helm
from horovod_job import Job, idle_group, idle_program, python_group
from manifests import operator_roles

pytestmark = pytest.mark.timeout(420)
PLAIN = Path(__file__).parent / "plain_before_the_chart"
PLAIN_CRDS = ROOT / "tests/operator/crds_of_0.1.0"
CRD = "horovodjobs.gradsieve.io"
FIELDS = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/runPolicy/properties"
STAND_IN = "gradsieve-stand-in"
RELEASE, OTHER = "gradsieve", "tenants"
ELSEWHERE = "tenants-system"
TRAIN = """
import os, time
while not os.path.exists("/tmp/end"):
    time.sleep(0.2)
"""
SECONDS = 180
WAIT = ("--wait", f"--timeout={SECONDS}s")


def stand_in():
    """What the present operator may do, for the image that stands in for that version's own."""
    [role] = operator_roles("ClusterRole")
    named = {"apiVersion": role["apiVersion"], "metadata": {"name": STAND_IN}}
    account = {"kind": "ServiceAccount", "name": "gradsieve-operator", "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": STAND_IN}
    return [
        {**named, "kind": "ClusterRole", "rules": role["rules"]},
        {**named, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]},
    ]


class Operator:
    """The operator on the cluster, in Helm's hands."""

    def __init__(self, cluster):
        self._cluster = cluster
        repository, _, tag = cluster.operator_image.rpartition(":")
        self._image = ("--set", f"image.repository={repository},image.tag={tag}")

    def helm(self, command, release, *options, namespace=NAMESPACE):
        """Run Helm on a release."""
        words = (command, release, "--namespace", namespace, *options)
        return helm(*words, environment=self._cluster.environment(), timeout=SECONDS + 30)

    def install(self, release, *options, namespace=NAMESPACE):
        """Install the chart, and return when its replicas are ready."""
        self.helm("install", release, str(CHART), *self._image, *WAIT, *options, namespace=namespace)

    def change(self, values):
        """Give the second release other values."""
        options = ("--reset-then-reuse-values", "--set", values)
        self.helm("upgrade", OTHER, str(CHART), *options, *WAIT, namespace=ELSEWHERE)

    def apply_plain(self):
        """Install it as the documentation said before there was a chart."""
        self.kubectl("apply", "-f", str(PLAIN_CRDS))
        self.kubectl("apply", "-f", str(PLAIN / "namespace.yaml"), "-f", str(PLAIN / "rbac.yaml"))
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(stand_in()))
        deployment = yaml.safe_load((PLAIN / "operator.yaml").read_text())
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        container["image"] = self._cluster.operator_image
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(deployment))
        wait = ("rollout", "status", "deployment/gradsieve-operator", f"--timeout={SECONDS}s")
        self.kubectl("--namespace", NAMESPACE, *wait, timeout=SECONDS + 10)

    def kubectl(self, *arguments, **options):
        """Run kubectl."""
        return self._cluster.kubectl(*arguments, **options)

    def pods(self, namespace=NAMESPACE):
        """UIDs of its pods that are not on their way out."""
        where = ("--namespace", namespace, "-l", "app.kubernetes.io/name=gradsieve-operator")
        found = json.loads(self.kubectl("get", "pods", *where, "-o", "json"))["items"]
        return {each["metadata"]["uid"] for each in found if "deletionTimestamp" not in each["metadata"]}

    def leader(self):
        """The pod that holds the Lease."""
        where = ("--namespace", NAMESPACE, "get", "lease", "gradsieve-operator")
        return self.kubectl(*where, "-o", "jsonpath={.spec.holderIdentity}")

    def definition_has(self, field, of="/spec/runPolicy"):
        """Whether the job's definition knows a field of one of its objects."""
        found = json.loads(self.kubectl("get", "crd", CRD, "-o", "json"))
        schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for name in of.strip("/").split("/"):
            schema = schema["properties"][name]
        return field in schema["properties"]

    def change_definition(self, **operation):
        """Patch the fields of `runPolicy` in the job's definition."""
        field = operation.pop("field")
        patch = json.dumps([{"path": f"{FIELDS}/{field}", **operation}])
        self.kubectl("patch", "crd", CRD, "--type=json", "-p", patch)


@pytest.fixture(scope="module")
def operator(cluster):
    """The operator of the last plain manifests; everything is gone afterwards but the definitions."""
    if isinstance(cluster, ExternalCluster):
        skip("replacing the operator again and again")
    found = Operator(cluster)
    found.apply_plain()
    yield found
    for release, namespace in ((RELEASE, NAMESPACE), (OTHER, ELSEWHERE)):
        found.helm("uninstall", release, "--ignore-not-found", "--wait", namespace=namespace)
        gone = ("delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
        found.kubectl(*gone, timeout=70)
    found.kubectl("apply", "-f", str(MANIFESTS / "crds"))


@pytest.fixture(scope="module")
def training(cluster, operator):
    """A job with real agents and ranks that run until they are told to end."""
    namespace = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    cluster.apply(idle_program(namespace))
    job = Job(cluster, namespace)
    compression = {"algorithm": "Laplace", "densityPermille": 10}
    job.apply(python_group(cluster, namespace, 2, TRAIN), compression=compression)
    job.wait(lambda: job.condition("Running")["status"] == "True", 120, "running")
    yield job
    job.delete()
    cluster.delete_namespace(namespace)


@pytest.fixture(scope="module")
def before(training):
    """The job's pods when the story began."""
    return uids(training)


def uids(job):
    return {pod["metadata"]["uid"] for pod in job.pods().values()}


def told_of_plan(generation, job):
    status = job.status()
    told = status["plan"]["generation"] == generation
    return told and job.condition("PlanConverged")["reason"] == "Pending"


def start_another(cluster, training, name, **spec):
    """A job of idle pods beside the training, all of which have got their nodes."""
    job = Job(cluster, training.namespace, name)
    job.apply(idle_group("worker", 1, cluster.training_image), **spec)
    job.wait(job.admitted, 90, "admitted")
    return job


@pytest.fixture
def unnoticed(training, before):
    """Afterwards the same pods run, the ranks were never restarted, and the operator hears from them."""
    yield
    told = (training.condition("Running")["status"], training.status().get("restartCount", 0))
    assert (uids(training), told) == (before, ("True", 0))


def test_helm_takes_over_what_plain_manifests_installed(operator, training, unnoticed):
    plain = operator.pods()
    assert not operator.definition_has("denseBytesPerStep", of="/status/telemetry")
    operator.install(RELEASE, "--take-ownership", "--force-conflicts")
    assert operator.definition_has("denseBytesPerStep", of="/status/telemetry")
    assert operator.pods().isdisjoint(plain)
    assert len(operator.pods()) == 2
    # From here on it has the chart's rights alone.
    operator.kubectl("delete", "clusterrole,clusterrolebinding", STAND_IN)


def test_helm_test_finds_an_operator_that_leads(operator, training, unnoticed):
    assert "Phase:          Succeeded" in operator.helm("test", RELEASE)


def test_a_job_that_is_made_after_the_leader_was_lost_is_started_by_the_other_replica(
    cluster, operator, training, unnoticed
):
    lost = operator.leader()
    gone = ("delete", "pod", lost, "--grace-period=0", "--force")
    operator.kubectl("--namespace", NAMESPACE, *gone)
    start_another(cluster, training, "late").delete()
    assert operator.leader() != lost


def test_an_upgrade_brings_fields_that_are_new_and_new_pods_of_the_operator(operator, training, unnoticed):
    old = operator.pods()
    operator.change_definition(op="remove", field="ttlSecondsAfterFinished")
    revision = ("--reset-then-reuse-values", "--set-string", "podAnnotations.revision=2")
    operator.helm("upgrade", RELEASE, str(CHART), *revision, *WAIT)
    assert operator.definition_has("ttlSecondsAfterFinished")
    assert operator.pods().isdisjoint(old)


def test_a_rollback_leaves_the_definitions_of_the_later_version(operator, training, unnoticed):
    old = operator.pods()
    schema = {"type": "string", "maxLength": 10}
    operator.change_definition(op="add", field="fromALaterVersion", value=schema)
    operator.helm("rollback", RELEASE, "1", *WAIT)
    assert operator.definition_has("fromALaterVersion")
    assert operator.pods().isdisjoint(old)


def test_uninstalled_it_leaves_the_job_running_and_the_definitions_there(operator, training, unnoticed):
    operator.helm("uninstall", RELEASE, *WAIT)
    assert operator.pods() == set()
    assert operator.definition_has("fromALaterVersion")


def test_a_release_of_another_name_in_another_namespace_that_may_do_less_adopts_the_job(
    operator, training, unnoticed
):
    operator.kubectl("create", "namespace", ELSEWHERE)
    scope = f"rbac.scope=namespaced,watchNamespaces={{{training.namespace}}}"
    operator.install(OTHER, "--set", scope, namespace=ELSEWHERE)
    where = ("get", "networkpolicy", training.name, "-o", "json")
    training.wait(lambda: ELSEWHERE in training.kubectl(*where), 60, "the operator admitted by the job")
    training.patch({"compression": {"densityPermille": 20}})
    # These ranks follow no plan: only what the coordinator answers makes it pending.
    training.wait(lambda: told_of_plan(2, training), 90, "the coordinator told and heard")


def test_that_one_starts_jobs_and_is_refused_nothing(cluster, operator, training, unnoticed):
    start_another(cluster, training, "second").delete()
    said = operator.kubectl("--namespace", ELSEWHERE, "logs", "deployment/gradsieve-operator", "--all-pods")
    assert "orbidden" not in said
    assert "Not enough permissions" not in said


ASK_THE_OTHER = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 8080), timeout=3).close()
except TimeoutError:
    print("no way")
else:
    print("reached")
"""


def test_with_egress_restricted_it_hears_from_coordinators_and_calls_nobody_else(
    cluster, operator, training, unnoticed
):
    def neighbour():
        """Whether one replica reaches the other's health port, which lets everybody in."""
        where = ("--namespace", ELSEWHERE)
        listed = json.loads(operator.kubectl(*where, "get", "pods", "-o", "json"))["items"]
        asking, asked = (pod for pod in listed if "deletionTimestamp" not in pod["metadata"])
        program = ("python3", "-c", ASK_THE_OTHER, asked["status"]["podIP"])
        return operator.kubectl(*where, "exec", asking["metadata"]["name"], "--", *program).strip()

    assert neighbour() == "reached"
    address = operator.kubectl("get", "endpoints", "kubernetes", "-o", "jsonpath={..addresses[0].ip}")
    operator.change(f"networkPolicy.egress.enabled=true,networkPolicy.egress.apiServerCidrs={{{address}/32}}")
    cluster.settle_policies()
    assert neighbour() == "no way"
    training.patch({"compression": {"densityPermille": 30}})
    training.wait(lambda: told_of_plan(3, training), 90, "the coordinator told and heard")


def test_without_planning_it_starts_jobs_that_need_none_and_refuses_others(
    cluster, operator, training, unnoticed
):
    operator.change("planning.enabled=false")
    start_another(cluster, training, "unplanned", scheduling={"gang": "None"}).delete()
    planned = Job(cluster, training.namespace, "planned")
    planned.apply(idle_group("worker", 1, cluster.training_image))
    planned.wait(lambda: planned.waits_because("InvalidSpec"), 60, "refused")
    planned.delete()


def test_the_training_ends_well_under_its_last_operator(training, before):
    for index in range(2):
        training.kubectl("exec", f"digits-worker-{index}-1", "--", "touch", "/tmp/end")
    training.wait(lambda: training.condition("Complete")["status"] == "True", 90, "complete")
    assert training.status().get("restartCount", 0) == 0

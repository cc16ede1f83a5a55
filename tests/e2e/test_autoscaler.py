"""What docs/operations.md says of jobs that wait and autoscalers, with one that adds simulated nodes."""

import json

import pytest
from autoscaler import Autoscaler
from cluster.simulated import SimulatedCluster
from horovod_job import Job, group
from operator_process import running_operator
from rights import AUDIT, asked
from simulated_jobs import NAMESPACE, add_node, namespace, succeed

pytestmark = pytest.mark.timeout(200)
WORKERS, CPU = 2, 4
ASKS = {"resources": {"requests": {"cpu": str(CPU)}}}


@pytest.fixture(scope="module")
def simulated(machine):
    """A cluster whose only node is too small for a worker."""
    with SimulatedCluster.start(audit=AUDIT) as cluster:
        add_node(cluster, "small", 1)
        cluster.apply(namespace())
        cluster.wait_for_service_account(NAMESPACE)
        yield cluster
        assert asked(cluster.control_plane.audit_log).refused == []


@pytest.fixture(scope="module")
def operator(simulated, tmp_path_factory):
    with running_operator(simulated, tmp_path_factory.mktemp("operator") / "log") as found:
        yield found


@pytest.fixture
def job(simulated, request):
    """A job that is not there yet, of the test's own name."""
    return Job(simulated, NAMESPACE, request.param)


@pytest.fixture
def autoscaler(simulated, operator, job):
    """An autoscaler that may add as many nodes as a job needs; they go with it."""
    with Autoscaler(simulated, job.name, CPU + 1, WORKERS).runs() as found:
        yield found
    simulated.kubectl("delete", "node", *found.added)


def workers(job):
    return {name: pod for name, pod in job.pods().items() if "worker" in name}


def runs_on(job):
    """Where workers run; nothing unless all do."""
    pods = workers(job).values()
    running = len(pods) == WORKERS and all(pod["status"]["phase"] == "Running" for pod in pods)
    return {pod["spec"]["nodeName"] for pod in pods} if running else set()


def placeholders(replicas):
    """A Deployment of pods that ask for what the workers do."""
    labels = {"app": "placeholder"}
    pod = {"containers": [{"name": "nothing", "image": "pause", **ASKS}]}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, **pod}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "placeholder", "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def ready(simulated):
    said = simulated.kubectl("-n", NAMESPACE, "get", "deployment", "placeholder", "-o", "json")
    return json.loads(said)["status"].get("readyReplicas", 0)


@pytest.mark.parametrize("job", ["planned"], indirect=True)
def test_a_planned_job_that_waits_makes_no_autoscaler_act_until_placeholders_do(simulated, autoscaler, job):
    job.apply(group("worker", WORKERS, "train", ["true"], container=ASKS))
    job.wait(lambda: job.waits_because("NoPlace"), 60, "waits")
    seen = autoscaler.looks
    job.wait(lambda: autoscaler.looks > seen + 6, 60, "the autoscaler has looked")
    assert autoscaler.added == []
    assert job.waits_because("NoPlace")

    simulated.apply(placeholders(WORKERS))
    job.wait(lambda: ready(simulated) == WORKERS, 60, "placeholders run on new nodes")
    assert len(autoscaler.added) == WORKERS
    assert job.waits_because("NoPlace")
    simulated.apply(placeholders(0))
    job.wait(lambda: runs_on(job) == set(autoscaler.added), 60, "the job runs there")
    succeed(job)


@pytest.mark.parametrize("job", ["unplanned"], indirect=True)
def test_with_gang_none_pods_wait_where_an_autoscaler_sees_them(autoscaler, job):
    job.apply(group("worker", WORKERS, "train", ["true"], container=ASKS), scheduling={"gang": "None"})
    job.wait(lambda: runs_on(job) == set(autoscaler.added), 60, "the job runs on new nodes")
    succeed(job)

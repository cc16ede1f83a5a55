"""What refuses one pod of a gang refuses all: what was made goes, and it starts once nothing refuses."""

from contextlib import contextmanager

import pytest
from cluster.errors import ClusterError
from cluster.pods import pod
from horovod_job import Job, idle_group

pytestmark = pytest.mark.timeout(300)
WEBHOOK = "unreachable.gradsieve.io"
SECOND = {"gradsieve.io/role": "worker", "gradsieve.io/index": "1"}


@contextmanager
def unreachable_webhook(cluster, namespace):
    """A webhook that nobody serves, asked about the second worker of every group of this namespace."""
    name = f"unreachable-{namespace}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {
        "name": WEBHOOK,
        "clientConfig": {"service": {"namespace": namespace, "name": "nobody"}},
        "rules": [pods],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": SECOND},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    try:
        cluster.apply({**kind, "metadata": {"name": name}, "webhooks": [webhook]})
        yield
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")


def refused(cluster, manifest) -> bool:
    """Whether the API server would not make this object now."""
    try:
        cluster.apply(manifest)
    except ClusterError as error:
        return "failed calling webhook" in str(error)
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    cluster.kubectl("--namespace", namespace, "delete", "pod", name, "--wait=false")
    return False


def test_a_webhook_that_cannot_be_reached_leaves_no_half_made_gang(
    cluster, namespace, operator, job, record_property
):
    with unreachable_webhook(cluster, namespace):
        probe = pod(namespace, "probe", cluster.pause_image, labels=SECOND)
        job.wait(lambda: refused(cluster, probe), 30, "the API server asks the webhook")
        job.apply(idle_group("worker", 2, cluster.training_image))
        job.wait(lambda: bound(job) == {"digits-coordinator-1", "digits-worker-0-1"}, 60, "half of the gang")
        said: list[str] = []
        held = job.wait(lambda: withdrawn(job, said), 90, "the gang withdrawn")
        record_property("seconds_held", round(held, 1))
        assert f'failed calling webhook "{WEBHOOK}"' in said[0]
        assert said[0] in job.said("Refused")
    job.wait(job.admitted, 180, "admitted without the webhook")
    pods = job.pods()
    ending = {name for name, each in pods.items() if "deletionTimestamp" in each["metadata"]}
    assert len(pods) - len(ending) == 3
    # Only of a second try, refused before the webhook was gone, may a node still be ending what it had begun.
    assert not ending or any(name.endswith("-3") for name in pods)
    job.wait(lambda: len(job.pods()) == 3, 30, "what a second try had made is gone")
    assert {name for name in job.pods() if name.endswith("-1")} == set()


def withdrawn(job: Job, said: list[str]) -> bool:
    """Whether it waits without a pod, as one was refused; notes why, as its next try says something else."""
    found = job.condition("Admitted")
    if (found["status"], found["reason"], job.pods()) != ("False", "Refused", {}):
        return False
    said.append(found["message"])
    return True


def bound(job: Job) -> set[str]:
    return {name for name, each in job.pods().items() if each["spec"].get("nodeName")}


def test_a_limit_range_that_refuses_one_group_leaves_no_pod_of_the_other(cluster, namespace, operator, job):
    limit = {"max": {"memory": "200Mi"}, "default": {"memory": "100Mi"}, "type": "Container"}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "small", "namespace": namespace},
            "spec": {"limits": [limit]},
        }
    )
    large = {"resources": {"limits": {"memory": "201Mi"}, "requests": {"cpu": "10m"}}}
    job.apply(
        idle_group("small", 1, cluster.training_image),
        idle_group("large", 1, cluster.training_image, container=large),
    )
    said: list[str] = []
    job.wait(lambda: withdrawn(job, said), 90, "refused")
    assert "maximum memory usage per Container is 200Mi" in said[0]
    job.kubectl("delete", "limitrange", "small")
    job.wait(job.admitted, 120, "admitted without the LimitRange")

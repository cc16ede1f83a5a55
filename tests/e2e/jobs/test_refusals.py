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
        held = job.wait(lambda: job.waits_because("Refused"), 90, "the gang withdrawn")
        record_property("seconds_held", round(held, 1))
        called = f'failed calling webhook "{WEBHOOK}"'
        job.wait(lambda: told(job, called), 30, "condition and event say who refuses it")
    job.wait(job.admitted, 180, "admitted without the webhook")
    # A second try may have been refused, too, and its node may take a moment to end what it had started.
    assert len([each for each in job.pods().values() if "deletionTimestamp" not in each["metadata"]]) == 3
    job.wait(lambda: len(job.pods()) == 3, 30, "all that was made before is gone")
    assert {name for name in job.pods() if name.endswith("-1")} == set()


def told(job: Job, what: str) -> bool:
    """Whether its condition says so, and an event the same. It says something else while it tries again."""
    found = job.condition("Admitted")
    said = found.get("message", "")
    return found["reason"] == "Refused" and what in said and said in job.said("Refused")


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
    job.wait(lambda: job.waits_because("Refused"), 90, "refused")
    job.wait(lambda: told(job, "maximum memory usage per Container is 200Mi"), 30, "said why")
    job.kubectl("delete", "limitrange", "small")
    job.wait(job.admitted, 120, "admitted without the LimitRange")

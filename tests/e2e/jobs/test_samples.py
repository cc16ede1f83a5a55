"""The sample manifest that no other test applies."""

import pytest
from sample_jobs import T4, SampleJob

pytestmark = pytest.mark.timeout(300)


def test_the_queued_sample_makes_its_pods_for_the_queue_once_it_is_resumed(cluster, operator, namespace):
    """Without Kueue nobody holds the pods back: the scheduler binds them as any others."""
    for node in cluster.nodes[:2]:
        node.label_gpu(T4, 2, 15360)
    job = SampleJob(cluster, namespace, "queued")
    job.apply_sample()
    job.wait(lambda: job.condition("Suspended")["status"] == "True", 30, "suspended")
    assert job.pods() == {}
    job.patch({"suspend": False})
    job.wait(job.admitted, 60, "admitted")
    workers = [pod for name, pod in job.pods().items() if "coordinator" not in name]
    assert len(workers) == 2
    for pod in workers:
        metadata = pod["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert "affinity" not in pod["spec"]

"""A job whose image is not there says so, and waits."""

import pytest
from horovod_job import idle_group

pytestmark = pytest.mark.timeout(120)
MISSING = "gradsieve.io/not-there:1"


def test_an_image_that_is_not_there_is_named_in_the_status_and_no_restart_is_counted(
    cluster, namespace, operator, job
):
    job.apply(idle_group("worker", 1, MISSING, container={"imagePullPolicy": "Never"}))
    job.wait(lambda: job.condition("Degraded")["reason"] == "PodStuck", 60, "told")
    message = job.condition("Degraded")["message"]
    assert "cannot start: ErrImageNeverPull" in message
    assert MISSING in message
    assert job.condition("Degraded")["status"] == "True"
    assert len(job.pods()) == 2
    assert job.status()["restartCount"] == 0
    job.delete()

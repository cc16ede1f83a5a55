"""On a cluster that only a kubeconfig names, what needs no tricks runs, and the rest says why it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.external import KUBECONFIG, OPERATOR_IMAGE, TRAINING_IMAGE, ExternalCluster

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
SCENARIOS = (
    "test_gang.py::test_of_two_rivals_under_a_quota_that_fits_one_exactly_one_runs",
    "test_lifecycle.py::test_a_suspended_job_has_no_pods_a_resumed_one_new_ones_and_a_deleted_one_nothing",
    "test_lifecycle.py::test_jobs_deleted_while_the_operator_is_down_leave_nothing",
    "test_samples.py::test_the_queued_sample_makes_its_pods_for_the_queue_once_it_is_resumed",
)


@pytest.fixture
def without_operator(cluster, operator):
    """The harness's own cluster, to be taken for somebody else's."""
    if isinstance(cluster, ExternalCluster):
        pytest.skip("this is such a cluster")
    operator.kill()
    yield cluster
    operator.start()


def test_scenarios_run_on_the_deployed_operator_and_those_with_tricks_are_skipped_with_the_reason(
    without_operator,
):
    named = {
        KUBECONFIG: str(without_operator.kubeconfig),
        TRAINING_IMAGE: without_operator.training_image,
        OPERATOR_IMAGE: without_operator.operator_image,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", *(str(HERE / scenario) for scenario in SCENARIOS)],
        env={**without_operator.environment(), **named, "GRADSIEVE_REQUIRE_CLUSTER": "0"},
        cwd=os.fspath(HERE.parents[2]),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert "2 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    for reason in ("an operator to be killed at will", "pretending that a node has GPUs"):
        assert f"{reason} needs the harness's own cluster: unset {KUBECONFIG}" in done.stdout

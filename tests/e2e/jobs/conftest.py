"""The operator beside the cluster, and a job of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.external import ExternalCluster
from horovod_job import Job, idle_program
from operator_deployment import DeployedFromOutside, deployed_operator
from operator_process import OperatorProcess, running_operator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Time ranks last, when tests of other folders, in a process beside, have ended."""
    items.sort(key=lambda item: item.path.parent == HERE and "sole_training" in item.keywords)


@pytest.fixture(scope="session")
def operator(cluster, tmp_path_factory) -> Iterator[OperatorProcess | DeployedFromOutside]:
    """The operator as a process on this machine, fast to start and to kill; on somebody else's cluster, whose
    pods this machine may not reach, as users install it.
    """
    if isinstance(cluster, ExternalCluster):
        with deployed_operator(cluster) as deployment:
            yield DeployedFromOutside(deployment)
        return
    with running_operator(cluster, tmp_path_factory.mktemp("operator") / "log") as found:
        yield found


@pytest.fixture(autouse=True)
def idle(cluster, namespace) -> None:
    """What pods run that need not train."""
    cluster.apply(idle_program(namespace))


@pytest.fixture
def job(cluster, namespace) -> Job:
    """A job that is not there yet."""
    return Job(cluster, namespace)

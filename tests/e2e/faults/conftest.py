"""A cluster of its own, since what is done to it would disturb other tests, and two replicas on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from cluster.external import KUBECONFIG
from cluster.local import Cluster
from fault_proxy import FaultProxy
from onlooker import Onlooker, onlooking_at_a_namespace
from replicas import Replicas, running_replicas
from rights import AUDIT, asked

REQUIRED = "GRADSIEVE_REQUIRE_CLUSTER"


@pytest.fixture(scope="module")
def cluster(request) -> Iterator[Cluster]:
    """Three nodes that belong to the tests of one file."""
    if KUBECONFIG in os.environ:
        pytest.skip("faults of the control plane need the harness's own cluster")
    request.getfixturevalue("machine")
    if shutil.which("faketime") is None:
        message = "the operator gets a clock of its own by Debian's package faketime"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{message} ({REQUIRED}=1 makes this a failure)")
        pytest.skip(message)
    with Cluster.start(nodes=3, name="faults", audit=AUDIT) as local:
        yield local
        # An API server that has just started refuses for a moment what it has not read the roles of.
        found = asked(local.audit_log)
        allowed = {f"{verb} {group}/{resource}" for group, resource, verb in found.used}
        assert {each.partition(":")[0] for each in found.refused} <= allowed, found.refused


@pytest.fixture(scope="module")
def proxy(cluster, tmp_path_factory) -> Iterator[FaultProxy]:
    """What the operator takes for the API server."""
    found = FaultProxy(cluster, tmp_path_factory.mktemp("proxy"))
    with found.serving():
        yield found


@pytest.fixture(scope="module")
def replicas(cluster, proxy, tmp_path_factory) -> Iterator[Replicas]:
    """The operator, behind the proxy."""
    with running_replicas(cluster, proxy.kubeconfig, tmp_path_factory.mktemp("operator")) as found:
        yield found


@pytest.fixture
def onlooker(cluster, replicas, tmp_path) -> Iterator[Onlooker]:
    """Judges what happens in a namespace of the test's own; the test fails if a law was broken."""
    with onlooking_at_a_namespace(cluster, tmp_path) as found:
        yield found
        found.settle()

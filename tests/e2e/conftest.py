"""The cluster of the end-to-end tests: one for the whole session, started when the first test asks for it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import prerequisites
from cluster.external import KUBECONFIG, ExternalCluster
from cluster.local import Cluster
from judged_rights import JudgedRights
from rights import AUDIT, asked
from turns import Turn

REQUIRED = "GRADSIEVE_REQUIRE_CLUSTER"
HERE = Path(__file__).parent
RIGHTS = pytest.StashKey[JudgedRights]()
TURN = pytest.StashKey[Turn]()


def pytest_configure(config):
    config.stash[TURN] = Turn()
    config.stash[RIGHTS] = JudgedRights(config, HERE)
    config.pluginmanager.register(config.stash[RIGHTS])


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("e2e")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Let tests with ``sole_training`` wait for one another, before their own time begins.

    What one has started for its module goes on until the module's last: the turn is theirs together.
    """
    turn = item.config.stash[TURN]
    # Without root there is no cluster on this machine, and somebody else's is no slower for what runs here.
    own_cluster = os.geteuid() == 0 and KUBECONFIG not in os.environ
    if own_cluster and item.get_closest_marker("sole_training"):
        turn.take()
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path or not nextitem.get_closest_marker("sole_training"):
            turn.give_up()


def pytest_terminal_summary(terminalreporter):
    """Show what tests have measured, by `record_property`."""
    measured = [
        f"{report.nodeid.rpartition('::')[2]}: " + ", ".join(f"{name} {value}" for name, value in recorded)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call" and (recorded := report.user_properties)
    ]
    if measured:
        terminalreporter.section("measured")
        for line in measured:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def machine():
    """Nothing; a machine that cannot carry a cluster skips what asks for it."""
    if lacks := prerequisites.missing():
        message = f"a test cluster needs: {'; '.join(lacks)}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{message} ({REQUIRED}=1 makes this a failure)")
        pytest.skip(message)


@pytest.fixture(scope="session")
def cluster(request) -> Iterator[Cluster | ExternalCluster]:
    """Three nodes on this machine, or the cluster that GRADSIEVE_E2E_KUBECONFIG names."""
    if KUBECONFIG in os.environ:
        with ExternalCluster() as external:
            yield external
    else:
        request.getfixturevalue("machine")
        with Cluster.start(nodes=3, name="e2e", audit=AUDIT) as local:
            yield local
            found = asked(local.audit_log)
            request.config.stash[RIGHTS].note(found.used)
            assert found.refused == []


@pytest.fixture
def namespace(cluster) -> Iterator[str]:
    """A namespace of the test's own that enforces *restricted* pod security; removed afterwards, as are GPUs.

    Jobs that need none keep off nodes with GPUs: those of one test would decide where the next one's pods go.
    """
    name = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    yield name
    cluster.delete_namespace(name)
    for node in cluster.nodes:
        node.withdraw_gpus()

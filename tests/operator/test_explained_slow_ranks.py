"""A slow rank is named with what is known of its container and node; neither decides anything."""

import dataclasses

import horovod_jobs as jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.adapt import Window, Work, read_window
from gradsieve_operator.cluster.node_view import keep_node

COMPRESSION = {"algorithm": "TopK", "densityPermille": 50}
ADAPTATION = {"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 600, "minSamples": 5}
UNEVEN = Work(0.1, 0.12, 0.3, 0.3)
MODES = ("Synchronous", "Balanced")


def decided(throttled=0.0, troubles=(), work=UNEVEN, signals=()):
    """Return the plans of a job whose second worker is slow, and why it got them."""
    spec = {"compression": COMPRESSION, "adaptation": ADAPTATION, "parallelism": {"mode": "Auto"}}
    it = VirtualCluster(jobs.body(**spec), {"n0": 1, "n1": 1, "n2": 1}, length=10**6)
    it.modes = MODES
    seen = Window(0, 32, 64.0, 1.0, 0.31, 0.0, 0.01, work, "worker-1", throttled)
    it.measure = lambda generation: dataclasses.replace(seen, generation=generation)
    it.live(5)
    node = it.pods["digits-worker-1-1"].node
    it.nodes[node] = dataclasses.replace(it.nodes[node], troubles=troubles)
    it.signals = {node: signals}
    it.live(60)
    plans = [each.plan for said in it.said for each in said.actions if isinstance(each, d.PutPlan)]
    return [plan.get("mode") for plan in plans], it.progress.adaptation.evidence.replace(node, "NODE")


def test_a_container_that_uses_its_limit_up_is_the_reason():
    modes, evidence = decided(throttled=0.62)
    assert modes[-1] == "Balanced"
    assert evidence.startswith(
        "the slowest rank on worker-1 always works 3.00 times as long as the mean "
        "(its container's CPU limit was used up in 62% of the time); "
    )


def test_a_cordoned_node_under_pressure_is_named():
    _, evidence = decided(throttled=0.4, troubles=("cordoned", "MemoryPressure"))
    assert "used up in 40% of the time, its node NODE: cordoned, MemoryPressure); " in evidence


def test_what_a_prometheus_knows_of_its_node_is_said():
    _, evidence = decided(signals=("a GPU has 91 °C",))
    assert "as the mean (its node NODE: a GPU has 91 °C); " in evidence


def test_without_anything_to_explain_it_only_the_rank_is_named():
    _, evidence = decided(throttled=0.05)
    assert "as the mean; Balanced" in evidence


@pytest.mark.parametrize("work", [UNEVEN, Work(0.1, 0.1, 0.1, 0.1)], ids=["uneven", "even"])
def test_what_explains_decides_nothing(work):
    assert decided(0.9, ("cordoned", "DiskPressure"), work)[0] == decided(0.0, (), work)[0]


def node(conditions, **spec):
    return keep_node({"metadata": {"name": "n0"}, "spec": spec, "status": {"conditions": conditions}}).state


def condition(kind, status):
    return {"type": kind, "status": status, "lastTransitionTime": "2026-11-24T00:00:00Z"}


def test_a_nodes_troubles_are_its_cordon_and_what_anybody_reports_of_it():
    found = node(
        [
            condition("Ready", "True"),
            condition("MemoryPressure", "True"),
            condition("DiskPressure", "False"),
            condition("KernelDeadlock", "True"),
            condition("PIDPressure", "Unknown"),
        ],
        unschedulable=True,
    )
    assert found.ready
    assert found.troubles == ("cordoned", "KernelDeadlock", "MemoryPressure")


def test_a_node_that_is_well_has_none():
    assert node([condition("Ready", "True"), condition("MemoryPressure", "False")]).troubles == ()


WINDOW = {
    "planGeneration": 1,
    "samples": 5,
    "seconds": 10.0,
    "stepSeconds": 0.31,
    "stepDeviation": 0.0,
    "delaySeconds": 0.01,
    "work": {"harmonic": 0.1, "paced": 0.12, "slowest": 0.3, "peak": 0.3},
}


ANYTHING = (
    st.none()
    | st.booleans()
    | st.text(max_size=5)
    | st.floats(allow_nan=True)
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 5e-324])
    | st.lists(st.integers(), max_size=2)
)


@given(ANYTHING | st.dictionaries(st.sampled_from(["receivedBytesPerStep", "bytesPerSecond"]), ANYTHING))
def test_a_link_that_is_none_is_not_believed_and_spoils_nothing(link):
    seconds = read_window({**WINDOW, "link": link}, age=1.0).bandwidth_seconds
    assert seconds is None or 0 <= seconds <= 1e6


def test_a_link_that_was_measured_tells_what_a_steps_bytes_take():
    link = {"receivedBytesPerStep": 250_000, "bytesPerSecond": 2_500_000.0, "startUpSeconds": 0.001}
    assert read_window({**WINDOW, "link": link}, age=1.0).bandwidth_seconds == pytest.approx(0.1)


@given(ANYTHING)
def test_a_share_that_is_none_is_not_believed_and_spoils_nothing(value):
    window = read_window({**WINDOW, "slowestThrottledShare": value}, age=1.0)
    assert 0 <= window.throttled <= 1
    assert window.flaw() == ""

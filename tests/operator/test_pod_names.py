"""Which place of a job a pod fills is read from its name, which nobody can change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_operator import contract
from gradsieve_operator.decide import read_pod

GROUPS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
COUNTS = st.integers(0, 10**6)


@given(GROUPS, GROUPS, COUNTS, COUNTS)
def test_a_worker_s_name_says_its_group_index_and_generation(job, group, index, generation):
    read = contract.read_pod_name(job, contract.worker_pod(job, group, index, generation))
    assert (read.role, read.group, read.index, read.generation) == ("worker", group, index, generation)
    assert read.host == contract.worker_host(group, index)


@given(GROUPS, COUNTS)
def test_a_coordinator_s_name_says_its_attempt(job, attempt):
    read = contract.read_pod_name(job, contract.coordinator_pod(job, attempt))
    assert (read.role, read.host, read.group, read.generation) == ("coordinator", "coordinator", "", attempt)


@pytest.mark.parametrize(
    "name",
    [
        "digits",
        "digits-",
        "digits-worker-0",
        "digits-worker-0-",
        "digits-worker-0-01",
        "digits-worker-0--1",
        "digits-worker-x-1",
        "digits-worker-0-\u0661",
        "digits-worker-0-10000000000000000000000",
        "digits-coordinator-x",
        "digital-worker-0-1",
    ],
)
def test_other_names_are_nobody_s(name):
    assert contract.read_pod_name("digits", name) is None
    assert read_pod({"metadata": {"name": name}}, "digits") is None


def test_labels_say_nothing():
    labels = {contract.LABEL_ROLE: "coordinator", contract.LABEL_INDEX: "abc"}
    labels |= {contract.LABEL_GENERATION: str(10**20), contract.LABEL_GROUP: "other"}
    raw = {"metadata": {"name": "digits-worker-1-2", "labels": labels}, "spec": {"hostname": "other-7"}}
    pod = read_pod(raw, "digits")
    assert (pod.role, pod.host, pod.group, pod.index, pod.generation) == (
        "worker",
        "worker-1",
        "worker",
        1,
        2,
    )


@pytest.mark.parametrize(
    "time", ["0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99", "10000-01-01T00:00:00Z"]
)
def test_a_time_that_no_clock_shows_is_none(time):
    assert (
        read_pod({"metadata": {"name": "digits-worker-1-2", "creationTimestamp": time}}, "digits").created
        == 0
    )

"""Empty places of a running job are filled as far as there is room, which is found out in a few questions."""

import math
from collections import Counter
from dataclasses import replace

import horovod_jobs as jobs
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster, decided

from gradsieve_operator.decide import Create, Unplaceable

SIZES = st.integers(1, 20)


def lacking(first: int, second: int, *, leaderless: bool) -> VirtualCluster:
    """A running job of two groups that has lost all workers but one of each, and perhaps its coordinator."""
    groups = [jobs.group("a", first + 1, minReplicas=1), jobs.group("b", second + 1, minReplicas=1)]
    it = VirtualCluster(jobs.body(*groups), {"n0": 100}, length=10**6)
    it.live(5)
    assert it.progress.running
    gone = {pod.host for pod in it.pods.values() if pod.host not in ("a-0", "b-0", "coordinator")}
    gone |= {"coordinator"} if leaderless else set()
    it.pods = {name: pod for name, pod in it.pods.items() if pod.host not in gone}
    it.progress = replace(it.progress, absent=tuple(sorted(gone)))
    return it


def room_for(room: dict[str, int], manifests) -> bool:
    wanted = Counter(
        each["metadata"]["labels"].get("gradsieve.io/group", "coordinator") for each in manifests
    )
    return all(count <= room[group] for group, count in wanted.items())


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, st.booleans(), st.integers(0, 22), st.integers(0, 22), st.integers(0, 1))
def test_as_many_places_as_have_room_are_filled_from_the_first_on(
    first, second, leaderless, room_a, room_b, room_c
):
    it, questions = lacking(first, second, leaderless=leaderless), []
    room = {"a": room_a, "b": room_b, "coordinator": room_c}

    def place(manifests):
        questions.append(len(manifests))
        if room_for(room, manifests):
            return {each["metadata"]["name"]: "n0" for each in manifests}
        return Unplaceable("full")

    decision = decided(it.world(), place)
    # Counted one by one: places are filled in the order of ranks.
    hosts = [*(["a"] * first), *(["b"] * second)]
    most = next(
        (
            count
            for count in range(first + second, -1, -1)
            if all(hosts[:count].count(group) <= room[group] for group in "ab")
        ),
        0,
    )
    most = 0 if leaderless and not room_c else most + leaderless
    assert len([action for action in decision.actions if isinstance(action, Create)]) == most
    assert len(questions) <= 2 + math.ceil(math.log2(first + second))


def test_in_a_full_cluster_two_questions_are_enough():
    it, questions = lacking(20, 20, leaderless=False), []

    def place(manifests):
        questions.append(len(manifests))
        return Unplaceable("full")

    assert decided(it.world(), place).degraded.message == "full"
    assert questions == [40, 1]

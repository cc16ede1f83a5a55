"""Who waits longer goes first, and a big job that small ones keep overtaking gets its turn."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import GPU, cluster, gang, gpu_node, load, place, pods

from gradsieve_operator.placement import PATIENCE, Assignment, Cluster, Load, Shortage, overtaken

NODES = (gpu_node("a", "T4", 2), gpu_node("b", "T4", 2))


def job(key, count, *, since=0.0, **more):
    return gang(*pods(count, requests={GPU: 1}), key=key, since=since, **more)


def test_a_small_job_may_start_while_a_big_one_waits():
    world = cluster(*NODES, loads=(load("a", gpu=1, ends=True),))
    big, small = job("big", 4, since=1), job("small", 1, since=2)
    assert isinstance(place(world, big, [big, small]), Shortage)
    assert isinstance(place(world, small, [big, small]), Assignment)
    assert overtaken(small, [big, small]) == ("big",)


def test_after_its_patience_is_over_places_are_held_for_the_big_one():
    world = cluster(*NODES, loads=(load("a", gpu=1, ends=True),))
    big, small = job("big", 4, since=1, overtaken=PATIENCE), job("small", 1, since=2)
    found = place(world, small, [big, small])
    assert isinstance(found, Shortage)
    assert found.held_for == "big"
    assert "held for big" in found.message
    free = cluster(*NODES)
    assert isinstance(place(free, big, [big, small]), Assignment)


def test_only_as_much_is_held_as_the_big_one_needs():
    world = cluster(*NODES, gpu_node("c", "T4", 2), loads=(load("a", gpu=2, ends=True),))
    big, small = job("big", 5, since=1, overtaken=PATIENCE), job("small", 1, since=2)
    assert isinstance(place(world, small, [big, small]), Assignment)
    assert isinstance(place(world, replace(small, shapes=job("", 2).shapes), [big]), Shortage)


def test_nothing_is_held_for_a_job_that_would_never_fit():
    world = cluster(*NODES, loads=(load("a", gpu=1),))
    big, small = job("big", 4, since=1, overtaken=PATIENCE), job("small", 1, since=2)
    assert isinstance(place(world, small, [big, small]), Assignment)
    refusal = place(world, big, [big])
    assert not refusal.ever
    assert "Not even with all other jobs ended" in refusal.message


def test_a_job_that_waits_longer_and_fits_takes_its_places_first():
    world = cluster(*NODES)
    first, second = job("first", 3, since=1), job("second", 2, since=2)
    assert isinstance(place(world, first, [first, second]), Assignment)
    assert isinstance(place(world, second, [first, second]), Shortage)
    assert isinstance(place(world, second, [second]), Assignment)


def test_a_higher_priority_goes_before_a_longer_wait():
    world = cluster(*NODES)
    old, important = job("old", 3, since=1), job("important", 3, since=2, priority=10)
    assert isinstance(place(world, old, [old, important]), Shortage)
    assert isinstance(place(world, important, [old, important]), Assignment)
    assert overtaken(important, [old, important]) == ()


@settings(max_examples=40)
@given(st.integers(2, 4), st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=12, max_size=12))
def test_a_big_job_behind_an_endless_stream_of_small_ones_starts(size, stream):
    """Each tick small jobs (pods, ticks that they run) arrive."""
    big, count, running = job("big", size, since=0.5), 0, [(2, (load("a", gpu=1, ends=True),))]
    queue, longest = [], max(length for _, length in stream)
    for tick in range(PATIENCE + 2 * longest + 2):
        pods_of, length = stream[tick % len(stream)]
        queue += [(job(f"s{tick}-{number}", pods_of, since=tick + 1), length) for number in range(2)]
        running = [(end, loads) for end, loads in running if end > tick]
        waiting = [big, *(other for other, _ in queue)]
        world = Cluster.of(NODES, (item for _, loads in running for item in loads))
        if isinstance(place(world, big, waiting), Assignment):
            return
        for small, runs in list(queue):
            world = Cluster.of(NODES, (item for _, loads in running for item in loads))
            found = place(world, small, [big, *(other for other, _ in queue)])
            if isinstance(found, Assignment):
                count += 1
                big = replace(big, overtaken=big.overtaken + ("big" in overtaken(small, [big])))
                running.append((tick + runs, found.loads))
                queue = [entry for entry in queue if entry[0] is not small]
    raise AssertionError(f"overtaken {count} times and still waiting")


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=5))
def test_all_who_are_told_to_start_fit_together(jobs):
    """Each job decides for itself, on the same picture; nevertheless no two get the same place."""
    waiting = [
        job(f"j{index}", count, since=index, priority=priority, overtaken=overtakings)
        for index, (count, priority, overtakings) in enumerate(jobs)
    ]
    world = cluster(*NODES, loads=(Load(node="a", requests={GPU: 1, "pods": 1}, ends=True),))
    results = [place(world, each, waiting) for each in waiting]
    together = world.with_loads(
        item for found in results if isinstance(found, Assignment) for item in found.loads
    )
    assert all(together.free(node.name, GPU) >= 0 for node in NODES)

"""A predicted cost is its bytes, rounds and work, and moves the right way with each of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.choice.costs import PATHS, Cost, Link, Load, WorkRates, predict
from gradsieve_hvd.choice.schedule import FORWARD_SHARE, step_time

RATES = WorkRates(select=1e-9, encode=2e-8, decode=2e-8, add=1e-10, narrow=5e-9, factor=1e-9)
NO_WORK = WorkRates(0, 0, 0, 0, 0, 0)
LINKS = st.builds(Link, st.floats(0, 0.1), st.floats(1e4, 1e10))
LOADS = st.integers(10_000, 2_000_000).flatmap(
    lambda elements: st.builds(
        Load,
        st.just(elements),
        st.floats(1, elements / 10),
        st.sampled_from(["float32", "bfloat16", "int4"]),
        st.floats(0.2, 1),
        st.integers(0, elements),
    )
)
RANKS = st.integers(2, 32)
paths = pytest.mark.parametrize("path", PATHS)


@paths
@given(LOADS, RANKS, LINKS)
def test_a_better_link_never_makes_a_path_slower(path, load, ranks, link):
    usual = predict(path, load, ranks, link, RATES)
    wider = predict(path, load, ranks, Link(link.start_up_seconds, 2 * link.bytes_per_second), RATES)
    sooner = predict(path, load, ranks, Link(link.start_up_seconds / 2, link.bytes_per_second), RATES)
    assert max(wider.seconds, sooner.seconds) <= usual.seconds
    assert wider.wire_bytes == usual.wire_bytes


@paths
@given(LOADS, LINKS)
def test_one_rank_alone_waits_for_nothing(path, load, link):
    assert predict(path, load, 1, link, RATES).travel_seconds == 0


@paths
@given(LOADS, RANKS, st.floats(1e4, 1e10))
def test_without_start_up_and_work_only_bytes_count(path, load, ranks, bytes_per_second):
    cost = predict(path, load, ranks, Link(0, bytes_per_second), NO_WORK)
    assert cost.seconds == pytest.approx(cost.wire_bytes / bytes_per_second)


@pytest.mark.parametrize(
    ("path", "rounds"),
    [("allgather", 1), ("dense", 6), ("fp16", 2), ("ring", 6), ("scatter", 2), ("lowrank", 12)],
)
def test_a_start_up_is_paid_in_each_round_of_four_ranks(path, rounds):
    load = Load(100_000, 1000)
    free, paid = (predict(path, load, 4, Link(start_up, 1e9), RATES) for start_up in (0, 1.0))
    assert paid.seconds - free.seconds == pytest.approx(rounds)


@paths
@given(LOADS, RANKS, LINKS, st.floats(1, 16))
def test_ranks_that_share_a_core_wait_for_each_others_work_and_send_no_more(path, load, ranks, link, share):
    alone = predict(path, load, ranks, link, RATES)
    shared = predict(path, replace(load, ranks_per_core=share), ranks, link, RATES)
    assert shared.work_seconds == pytest.approx(share * alone.work_seconds)
    assert shared.between_seconds == pytest.approx(share * alone.between_seconds)
    assert (shared.wire_seconds, shared.wire_bytes) == (alone.wire_seconds, alone.wire_bytes)


@paths
def test_many_small_tensors_cost_paths_that_select_from_each(path):
    rates = replace(NO_WORK, tensor=0.5)
    cost = predict(path, Load(100_000, 1000, tensors=6), 4, Link(0, 1e9), rates)
    assert cost.work_seconds == (3.0 if path in ("allgather", "ring", "scatter") else 0)


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int4"])
def test_factors_of_short_values_are_half_as_many_bytes(values):
    load = Load(1_000_000, 10_000, factor_values=30_000)
    short = predict("lowrank", replace(load, value_dtype=values), 4, Link(0, 1e6), NO_WORK)
    whole = predict("lowrank", load, 4, Link(0, 1e6), NO_WORK)
    assert (2 * short.wire_bytes, 2 * short.wire_seconds) == (whole.wire_bytes, whole.wire_seconds)


def test_a_slow_link_wants_few_bytes_and_a_free_one_little_work():
    load = Load(1_000_000, 10_000)

    def best(link):
        return min(
            ("dense", "fp16", "allgather"), key=lambda path: predict(path, load, 4, link, RATES).seconds
        )

    assert best(Link(5e-4, 1.25e7)) == "allgather"
    assert best(Link(1e-5, 1e11)) == "dense"


COSTS = st.lists(st.builds(Cost, st.floats(0, 1), st.floats(0, 1), st.just(0.0)), max_size=8)


@given(st.floats(0.01, 10), COSTS)
def test_a_step_takes_at_least_its_computing_and_at_most_everything_in_a_row(compute, buckets):
    time = step_time(compute, buckets)
    work = sum(bucket.work_seconds for bucket in buckets)
    wire = sum(bucket.wire_seconds for bucket in buckets)
    assert time.seconds == pytest.approx(compute + time.work_seconds + time.exposed_seconds)
    assert compute + work <= time.seconds + 1e-9
    assert time.seconds <= compute + work + wire + 1e-9


def test_what_leaves_early_is_hidden_and_the_last_bucket_is_not():
    buckets = [Cost(0, 0.1, 0), Cost(0, 0.1, 0)]
    assert step_time(3.0, buckets).exposed_seconds == pytest.approx(0.1)
    slow = [Cost(0, 10.0, 0), Cost(0, 10.0, 0)]
    first_ready = 3 * FORWARD_SHARE + 1
    assert step_time(3.0, slow).seconds == pytest.approx(first_ready + 20)


def test_moving_bytes_slows_computing_only_while_both_go_on():
    bucket = Cost(0, 1.0, 0, move_seconds=0.3)
    long, short = 9.0, 0.9
    assert step_time(long, [bucket]).work_seconds == pytest.approx(0.3)
    assert step_time(short, [bucket]).work_seconds == pytest.approx(0.3 * short * (1 - FORWARD_SHARE))


@paths
def test_moving_takes_a_core_for_what_is_sent_and_what_is_received(path):
    load = Load(100_000, 1000, ranks_per_core=2)
    cost = predict(path, load, 4, Link(0, 1e9), replace(NO_WORK, move=1e-9))
    assert cost.work_seconds == 0
    assert cost.move_seconds == pytest.approx(2 * 2e-9 * cost.wire_bytes)


@paths
def test_waiting_takes_a_part_of_a_core(path):
    load = Load(100_000, 1000, ranks_per_core=2)
    cost = predict(path, load, 4, Link(1e-3, 1e6), replace(NO_WORK, look=0.1))
    assert cost.move_seconds == pytest.approx(2 * 0.1 * cost.wire_seconds)


def test_room_for_a_sum_of_entries_is_made_in_every_element():
    cost = predict("allgather", Load(100_000, 1000), 4, Link(0, 1e9), replace(NO_WORK, clear=1e-6))
    assert cost.work_seconds == pytest.approx(0.1)

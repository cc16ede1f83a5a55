"""Adaptation against the simulation of the modes, which answers by real gradients and not by its formulas."""

import dataclasses

import pytest
from adaptation import TARGET, TODAY, Place, Replayed, places, recorded, run_of

from gradsieve_hvd.experiments.simulate.modes.tasks import digits


@pytest.fixture(scope="module")
def task():
    return dataclasses.replace(digits(), target=TARGET)


def first(kind: str, clusters: list[Place]) -> Place:
    return next(place for place in clusters if kind in place.kind)


def test_among_even_workers_a_training_goes_as_without_adaptation(task):
    place = first("even", places(10))
    job = Replayed(task, place, TODAY)
    assert job.play() == pytest.approx(2.0 * run_of(task, place, "Synchronous").play().seconds[0])
    assert job.changes == []


def test_a_worker_that_is_always_slow_costs_less_than_in_step_and_is_named_once(task):
    place = first("times as slow", places(10))
    job = Replayed(task, place, TODAY)
    in_step = 2.0 * run_of(task, place, "Synchronous").play().seconds[0]
    assert job.play() < 0.7 * in_step
    assert [(mode, reason) for _, mode, reason in job.changes] == [("Balanced", "SlowTail")]


def test_ranks_that_were_recorded_are_judged_as_those_that_are_played(task):
    even = Replayed(task, first("even", recorded()), TODAY)
    assert even.play() == pytest.approx(
        2.0 * run_of(task, first("even", recorded()), "Synchronous").play().seconds[0]
    )
    slow = first("a rank 4 times as slow", recorded())
    job = Replayed(task, slow, TODAY)
    assert job.play() < 0.5 * 2.0 * run_of(task, slow, "Synchronous").play().seconds[0]
    assert (even.changes, [mode for _, mode, _ in job.changes]) == ([], ["Balanced"])


def test_clusters_are_the_same_each_time():
    def told(clusters):
        return [(each.kind, each.workers, each.seed) for each in clusters]

    assert told(places(20)) == told(places(20))
    assert {each.seed for each in places(20)} == set(range(20))

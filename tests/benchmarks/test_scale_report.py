"""What the scale benchmark makes of what it has seen."""

import dataclasses

import pytest
from scale.audited import Request
from scale.report import Facts, details, row
from scale.sizes import Sizes

SIZES = Sizes(10, 2, 5, 100, minutes=1, rate=1, steady_minutes=2)
NAMES = [
    "jobs",
    "waiting",
    "pods",
    "nodes",
    "p99_seconds",
    "requests_per_job",
    "steady_requests_per_minute",
    "rss_mib",
    "failover_seconds",
    "gang_seconds",
    "queue_seconds",
]


def request(at, job, verb="patch", resource="pods"):
    return Request(at, job, verb, resource, telemetry=False)


def facts(**changed):
    seen = {
        "sizes": SIZES,
        "seconds": {"density": [0.1] * 98 + [0.5, 0.9], "resume": [30.0]},
        "lost": {},
        "requests": [
            *(request(100.0, "life-0000") for _ in range(3)),
            *(request(100.0, "life-0001") for _ in range(5)),
            *(request(200.0, "run-0000") for _ in range(40)),
            *(request(890.0, "life-0000", "list") for _ in range(9)),
            request(900.0, "after-0000"),
        ],
        "steady": (150.0, 270.0),
        "changed": (270.0, 880.0),
        "led_until": 880.0,
        "expiry": 898.5,
        "successor": "after-0000",
        "peak": 200.4,
        "peaks": {"operator-1": 150.0},
        "planned": {"gang_seconds": 0.01, "queue_seconds": 0.1},
        "processors": {},
        "modes": {"Balanced": 3},
    }
    return Facts(**{**seen, **changed})


def test_a_row_has_the_promised_names():
    assert list(row(facts())) == NAMES


def test_of_lives_the_one_with_most_requests_is_shown_and_what_a_next_leader_reads_is_not():
    assert row(facts())["requests_per_job"] == 5
    assert details(facts())["requests_of_a_life"] == {"patch pods": 5}


def test_steady_requests_are_by_job_and_minute():
    assert row(facts())["steady_requests_per_minute"] == 2.0


def test_taking_a_change_back_does_not_count_for_latency():
    assert row(facts())["p99_seconds"] == 0.5
    assert details(facts())["latencies"]["resume"] == pytest.approx(
        {"counted": False, "changes": 1, "lost": 0, "p50": 30.0, "p90": 30.0, "p99": 30.0, "p100": 30.0}
    )


def test_a_failover_lasts_from_the_expiry_to_the_first_child():
    assert row(facts())["failover_seconds"] == 1.5
    assert row(facts(requests=[request(1.0, "life-0000")]))["failover_seconds"] is None


def test_a_row_of_adapted_jobs_says_so_and_plans_are_counted_by_mode():
    adapted = dataclasses.replace(facts().sizes, adapted=True)
    assert row(facts(sizes=adapted))["adapted"] is True
    assert "adapted" not in row(facts())
    assert details(facts())["plans_by_mode"] == {"Balanced": 3}

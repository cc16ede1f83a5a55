"""What `gradsieve top JOB` shows of a job's ranks."""

import pytest

from gradsieve_operator.client.rank_rows import HEADER, loss, rank_rows
from gradsieve_operator.errors import SpecError


def rank(number, host, work, wait=0.1):
    return {"rank": number, "host": host, "stepSeconds": work, "waitSeconds": wait}


def host(name, connected=True):
    return {"host": name, "podUID": "u", "connected": connected, "admitted": True}


def shown(**status):
    return [dict(zip(HEADER, row.cells, strict=True)) for row in rank_rows(status)]


def test_the_rank_whose_own_work_takes_longest_comes_first():
    ranks = [rank(0, "a-0", 0.02), rank(1, "a-1", 0.3, 0.004)]
    ranks[1]["throttledShare"] = 0.62
    first, second = shown(registered=[host("a-0"), host("a-1")], telemetry={"ranks": ranks})
    times = {"WORK": "300ms", "WAIT": "4ms", "THROTTLED": "62%"}
    assert first == {"HOST": "a-1", "RANK": "1", **times, "CONNECTED": "yes"}
    assert (second["RANK"], second["THROTTLED"]) == ("0", "-")


def test_a_host_that_is_gone_is_marked_with_and_without_a_rank_in_the_last_sample():
    status = {"registered": [host("a-0", connected=False), host("a-1", connected=False), host("a-2")]}
    rows = rank_rows(status | {"telemetry": {"ranks": [rank(0, "a-0", 0.02)]}})
    assert [(row.cells[0], row.cells[1], row.needs_attention) for row in rows] == [
        ("a-0", "0", True),
        ("a-1", "-", True),
        ("a-2", "-", False),
    ]


def test_before_the_first_sample_hosts_are_shown():
    assert [row["HOST"] for row in shown(registered=[host("a-0")], telemetry=None)] == ["a-0"]


def test_no_cell_is_empty_has_a_blank_or_steers_the_terminal():
    [row] = rank_rows({"registered": [host("a b\x1b[2J")]})
    assert all(cell and not set(cell) & {" ", "\x1b"} for cell in row.cells)


@pytest.mark.parametrize(
    "status",
    [
        {"registered": "all"},
        {"registered": [7]},
        {"telemetry": []},
        {"telemetry": {"ranks": [{"rank": -1}]}},
        {"telemetry": {"ranks": [{"stepSeconds": float("nan")}]}},
        {"telemetry": {"ranks": [{"stepSeconds": "1"}]}},
        {"telemetry": {"ranks": [{"throttledShare": 1.5}]}},
        {"telemetry": {"ranks": [{"throttledShare": float("nan")}]}},
        {"telemetry": {"ranks": [{"stepSeconds": 10**400}]}},
        {"telemetry": {"ranks": [{"waitSeconds": float("inf")}]}},
    ],
    ids=str,
)
def test_what_is_no_status_is_named(status):
    with pytest.raises(SpecError, match="status"):
        rank_rows(status)


@pytest.mark.parametrize(("told", "shown"), [(0.123456789, "0.123457"), (2, "2"), (None, "-")])
def test_the_loss_is_what_the_program_reported_last(told, shown):
    assert loss({"telemetry": {"loss": told}}) == shown


@pytest.mark.parametrize(
    "told", ["low", True, 10**400, float("nan"), float("inf")], ids=lambda told: str(told)[:4]
)
def test_what_is_no_loss_is_named(told):
    with pytest.raises(SpecError, match="loss"):
        loss({"telemetry": {"loss": told}})

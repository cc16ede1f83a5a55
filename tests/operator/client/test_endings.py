"""With which status `gradsieve submit` ends, and what it says until then."""

import pytest

from gradsieve_operator.client.following import Ending, ending, waits_for


def status(complete=None, code=None, reason="R", message="m"):
    conditions = []
    if complete is not None:
        kind = "Complete" if complete else "Failed"
        conditions = [{"type": kind, "status": "True", "reason": reason, "message": message}]
    found = {"conditions": conditions, "completionTime": "2026-01-01T00:00:00Z"}
    return found if code is None else {**found, "exitCode": code}


@pytest.mark.parametrize(
    ("found", "exit_status"),
    [
        pytest.param(status(True, 0), 0, id="well"),
        pytest.param(status(False, 3), 3, id="the program's own"),
        pytest.param(status(False), 1, id="a deadline"),
        pytest.param(status(True), 0, id="well, under an operator that knows no exit codes"),
        pytest.param(status(False, 1000), 255, id="more than a process can end with"),
    ],
)
def test_the_exit_status_is_the_jobs(found, exit_status):
    assert ending(found) == Ending(exit_status, "R: m")


@pytest.mark.parametrize("found", [{}, {"conditions": []}, {"completionTime": None}])
def test_a_job_that_goes_on_has_no_ending(found):
    assert ending(found) is None


def condition(kind, value, reason):
    return {"type": kind, "status": value, "reason": reason, "message": "a\x1b[2J"}


def test_what_is_said_is_why_it_was_not_admitted_and_then_how_it_runs():
    waiting = [condition("Admitted", "False", "NoPlace"), condition("Running", "False", "NoPlace")]
    assert waits_for({"conditions": waiting}) == r"NoPlace: a\x1b[2J"
    admitted = [condition("Admitted", "True", "Placed"), condition("Running", "False", "Starting")]
    assert waits_for({"conditions": admitted}).startswith("Starting: ")
    assert waits_for({}) == ""

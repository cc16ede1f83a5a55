"""What `gradsieve top` shows of a job."""

import horovod_jobs as jobs
import pytest

from gradsieve_operator.client.job_rows import HEADER, job_row, job_rows, size

SAMPLE = {
    "step": 120,
    "stepMilliseconds": 314,
    "waitPercent": 41,
    "wireBytesPerStep": 107_400,
    "denseBytesPerStep": 2_913_000,
    "densityPermille": 10,
    "slowestWorker": "t4-1",
}


def running(status="True", reason="Running"):
    return {"type": "Running", "status": status, "reason": reason, "message": ""}


def job(**status):
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    body = jobs.body(jobs.group("a100", 2, container=gpus), jobs.group("t4", 1))
    groups = [{"name": "a100", "ready": 1, "gpuProducts": ["A100"]}, {"name": "t4", "ready": 1}]
    return {
        **body,
        "status": {"conditions": [running()], "workerGroups": groups, "telemetry": SAMPLE, **status},
    }


def shown(found):
    return dict(zip(HEADER, job_row(found).cells, strict=True))


def test_a_running_job_shows_where_it_runs_how_fast_and_what_is_saved():
    assert shown(job()) == {
        "NAMESPACE": "research",
        "NAME": "digits",
        "STATE": "Running",
        "GROUPS": "a100:1/2,t4:1/1",
        "GPUS": "4xA100",
        "STEP": "120",
        "STEP-TIME": "314ms",
        "WAIT": "41%",
        "DENSITY": "1%",
        "SENT": "107kB",
        "SAVED": "96.3%",
        "SLOWEST": "t4-1",
    }


def test_a_job_that_runs_no_more_shows_its_last_step_and_no_speed():
    found = shown(job(conditions=[running("False", "Succeeded")]))
    assert (found["STATE"], found["STEP"]) == ("Succeeded", "120")
    assert {found[name] for name in ("STEP-TIME", "WAIT", "DENSITY", "SENT", "SAVED", "SLOWEST")} == {"-"}


def test_a_job_that_nobody_has_looked_at_yet_is_shown():
    cells = job_row(jobs.body()).cells
    assert cells == ("research", "digits", "-", "worker:0/2", *["-"] * 8)


def test_an_operator_that_does_not_know_the_dense_bytes_leaves_open_what_is_saved():
    sample = {name: value for name, value in SAMPLE.items() if name != "denseBytesPerStep"}
    assert shown(job(telemetry=sample))["SAVED"] == "-"


@pytest.mark.parametrize("status", [{}, {"telemetry": {**SAMPLE, "slowestWorker": None}}])
def test_no_cell_is_empty_or_has_a_blank_in_it(status):
    assert not [cell for cell in job_row(job(**status)).cells if not cell or " " in cell]


def test_jobs_that_failed_or_wait_for_places_are_marked():
    assert job_row(job(conditions=[running("False", "Failed")])).needs_attention
    assert job_row(job(conditions=[running("False", "NoPlace")])).needs_attention
    assert not job_row(job()).needs_attention


def test_rows_are_in_the_order_of_namespace_and_name():
    found = [jobs.body(name=name, namespace=where) for where, name in (("b", "a"), ("a", "z"), ("a", "b"))]
    assert [row.cells[:2] for row in job_rows(found)] == [("a", "b"), ("a", "z"), ("b", "a")]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (999, "999B"), (1000, "1kB"), (38_552_000, "38.6MB"), (5 * 10**18, "5e+03PB")],
)
def test_bytes_are_shown_with_three_digits(count, text):
    assert size(count) == text

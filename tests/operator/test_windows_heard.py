"""What a coordinator has measured reaches decisions, and what a job does not get is said aloud."""

import json

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, conditions, running, until

from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry
from gradsieve_hvd.control.window import Window
from gradsieve_operator.cluster.coordinator_status import read_status

POLICY = ("gradsieve.io/v1alpha1/compressionpolicies", "research", "shared")


def served() -> dict:
    window = Window()
    ranks = (RankTelemetry(0, "worker-0", 0.1, 0.02), RankTelemetry(1, "worker-1", 0.15, 0.01))
    numbers = {"stepSeconds": 0.16, "waitSeconds": 0.015, "time": 1e9, "appliedPlanGeneration": 4.0}
    for second in (0.0, 2.0, 4.0):
        window.take(Telemetry(1, 7, numbers, ranks), second)
    telemetry = {"time": 1e9, "step": 7, "stepSeconds": 0.16, "waitSeconds": 0.015}
    status = {"state": "Running", "telemetry": telemetry, "telemetryAge": 1.5, "window": window.to_json()}
    return json.loads(json.dumps(status))


def test_the_window_of_a_coordinator_is_read_with_the_age_of_its_last_sample():
    window = read_status(served()).window
    assert (window.generation, window.samples, window.seconds, window.age) == (4, 3, 4.0, 1.5)
    assert (window.delay, window.work.slowest, window.host) == (0.01, 0.15, "worker-1")
    assert window.flaw() == ""


@pytest.mark.parametrize("window", [None, [], {}, {"stepSeconds": -1}, "x" * 1000], ids=repr)
def test_a_window_that_cannot_be_read_is_left_out_and_the_rest_is_heard(window):
    status = read_status({**served(), "window": window})
    assert (status.window, status.state, status.telemetry["step"]) == (None, "Running", 7)


def events(server) -> set[tuple[str, str]]:
    return {(each["reason"], each["type"]) for each in server.all("v1/events").values()}


async def test_a_mode_that_no_program_can_change_to_is_a_warning(server):
    server.objects[JOB, "research", "digits"] = jobs.body(parallelism={"mode": "Adaptive"})
    async with running() as operator:
        operator.queue.add(("research", "digits"))
        await until(lambda: ("ProgramCannot", "Warning") in events(server))
    assert conditions(server)["AdaptationHeld"]["status"] == "True"


async def test_adaptation_that_a_policy_asks_for_holds_of_its_jobs_and_waiting_is_no_news(server):
    spec = {"densityPermille": 10, "minDensityPermille": 2, "adaptation": {"enabled": True}}
    server.objects[POLICY] = {"metadata": {"name": "shared"}, "spec": {**spec, "algorithm": "TopK"}}
    server.objects[JOB, "research", "digits"] = jobs.body(compression={"policyRef": {"name": "shared"}})
    async with running() as operator:
        operator.queue.add(("research", "digits"))
        await until(lambda: "AdaptationHeld" in conditions(server))
        await until(lambda: server.all("v1/events"))
    assert conditions(server)["AdaptationHeld"]["reason"] == "NotRunning"
    assert "NotRunning" not in {reason for reason, _ in events(server)}

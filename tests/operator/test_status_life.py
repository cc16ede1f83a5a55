"""A job's status through its life: what kubectl shows, and what scripts wait for."""

from dataclasses import replace

import horovod_jobs as jobs
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import json_schema, without_nulls
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import Progress
from gradsieve_operator.errors import RecordError, SpecError
from gradsieve_operator.schema import job_definition
from gradsieve_operator.spec import Compression
from gradsieve_operator.spec.values import ALGORITHMS, MAX_GROUPS, MAX_WORKERS
from gradsieve_operator.status import invalid_status, job_status, recall, record
from gradsieve_operator.status.conditions import TYPES
from gradsieve_operator.status.times import written

STATUS = job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
VALIDATOR = jsonschema.Draft202012Validator(json_schema(STATUS))
TELEMETRY = {
    "time": 1000.0,
    "step": 7,
    "stepSeconds": 0.2,
    "waitSeconds": 0.05,
    "wireBytesPerStep": 4096,
    "denseBytesPerStep": 65536,
}


class Watched:
    """A virtual cluster whose status is written after every decision, as the operator does."""

    def __init__(self, *groups, nodes=(2, 2), **spec):
        spec.setdefault("runPolicy", {"backoffLimit": 2, "nodeLostSeconds": 5})
        capacity = {f"n{index}": size for index, size in enumerate(nodes)}
        self.it = VirtualCluster(jobs.body(*groups, **spec), capacity)
        self.status, self.states = {}, []

    def step(self):
        world = self.it.world()
        decision = self.it.operate()
        self.write(world, decision)
        if decision.requeue_after != 0.0:
            self.it.tick()

    def write(self, world, decision):
        wanted = job_status(world, decision, self.status, {"n0": "A100", "n1": "T4"})
        self.status = without_nulls(wanted)
        VALIDATOR.validate(self.status)
        assert [item["type"] for item in self.status["conditions"]] == list(TYPES)
        if not self.states or self.states[-1] != self.condition("Running")["reason"]:
            self.states.append(self.condition("Running")["reason"])

    def until(self, holds, steps=200):
        for _ in range(steps):
            self.step()
            if holds(self):
                return self
        raise AssertionError(self.status)

    def condition(self, kind):
        return next(item for item in self.status["conditions"] if item["type"] == kind)

    def holds(self, kind):
        return self.condition(kind)["status"] == "True"


def test_an_undisturbed_job_goes_from_preparing_to_succeeded():
    job = Watched(jobs.group("a", 2)).until(lambda job: job.holds("Complete"))
    assert job.states == ["Preparing", "Binding", "Starting", "Running", "Succeeded"]
    assert job.condition("Complete")["reason"] == "Succeeded"
    assert not job.holds("Failed")
    assert job.status["startTime"] < job.status["completionTime"]
    assert job.status["restartCount"] == 0


def test_while_it_runs_workers_are_counted_and_rendezvous_is_ready():
    job = Watched(jobs.group("a", 2), jobs.group("b", 1)).until(lambda job: job.holds("Running"))
    assert job.holds("Admitted")
    assert job.holds("RendezvousReady")
    assert (job.status["desired"], job.status["ready"]) == (3, 3)
    rows = {row["name"]: row for row in job.status["workerGroups"]}
    assert (rows["a"]["desired"], rows["a"]["active"], rows["a"]["ready"]) == (2, 2, 2)
    assert rows["b"]["gpuProducts"] == ["T4"]


def test_while_its_coordinator_is_told_of_another_worker_the_others_are_still_registered():
    job = Watched(nodes=(4, 4)).until(lambda it: it.holds("Running"))
    job.it.body["spec"]["workerGroups"][0]["replicas"] = 3
    job.until(lambda it: it.it.progress.roster == 2)
    assert job.holds("RendezvousReady")
    job.it.cut.add(job.it.made[-1])
    job.step()
    assert job.condition("RendezvousReady")["message"] == "waiting for worker-2"


def test_a_job_without_place_says_what_is_missing():
    job = Watched(jobs.group("a", 9)).until(lambda job: job.condition("Running")["reason"] == "NoPlace")
    assert job.condition("Admitted") == {**job.condition("Admitted"), "status": "False", "reason": "NoPlace"}
    assert job.condition("Admitted")["message"] == "10 pods do not fit"
    assert "startTime" not in job.status


def test_a_lost_worker_makes_the_job_degraded_until_it_is_replaced():
    job = Watched(jobs.group("a", 2)).until(lambda job: job.holds("Running"))
    job.it.length = 1000
    job.it.kill("digits-a-0-1")
    job.until(lambda job: job.holds("Degraded"))
    job.until(lambda job: job.condition("Running")["reason"] == "Restarting")
    job.until(lambda job: job.holds("Running") and not job.holds("Degraded"))
    assert job.status["restartCount"] == 1


def test_too_many_restarts_fail_the_job_with_the_reason():
    job = Watched(jobs.group("a", 2), runPolicy={"backoffLimit": 0}).until(lambda job: job.holds("Running"))
    job.it.kill("digits-a-0-1")
    job.until(lambda job: job.holds("Failed"))
    reason = job.condition("Failed")["reason"]
    assert reason == "BackoffLimitExceeded"
    job.until(lambda job: job.condition("Failed")["reason"] == reason, steps=5)
    assert job.states[-1] == "Failed"
    assert not job.holds("Complete")


def test_a_job_that_ended_well_has_the_exit_status_0_and_none_before():
    job = Watched(jobs.group("a", 2)).until(lambda job: job.holds("Running"))
    assert "exitCode" not in job.status
    job.until(lambda job: job.holds("Complete"))
    assert job.status["exitCode"] == 0


def test_a_program_that_failed_leaves_its_exit_status_also_after_its_pods_are_gone():
    job = Watched(jobs.group("a", 2), runPolicy={"backoffLimit": 0}).until(lambda job: job.holds("Running"))
    job.it.kill("digits-coordinator-1", exit_code=3)
    job.until(lambda job: job.holds("Failed"))
    assert job.status["exitCode"] == 3
    job.it.pods.clear()
    job.step()
    assert job.status["exitCode"] == 3


def test_a_job_that_a_deadline_ended_has_no_exit_status_whatever_its_coordinator_ends_with_then():
    job = Watched(jobs.group("a", 2), runPolicy={"activeDeadlineSeconds": 60})
    job.it.length = 1000
    job.until(lambda job: job.holds("Failed"))
    for name in [name for name, pod in job.it.pods.items() if pod.role == "coordinator"]:
        job.it.kill(name, exit_code=143)
    job.step()
    assert "exitCode" not in job.status


def test_a_suspended_job_is_called_so_once_its_pods_are_gone():
    job = Watched(jobs.group("a", 2)).until(lambda job: job.holds("Running"))
    job.it.body["spec"]["suspend"] = True
    job.step()
    assert job.condition("Suspended")["reason"] == "Suspending"
    job.until(lambda job: job.holds("Suspended"))
    assert job.condition("Admitted")["status"] == "False"
    assert "startTime" not in job.status


def test_all_that_suspending_ends_is_said_at_once():
    job = running()
    hears(job, applied_plan=1, telemetry={**TELEMETRY, "time": job.it.now})
    job.it.body["spec"]["suspend"] = True
    job.step()
    reasons = {each["type"]: (each["status"], each["reason"]) for each in job.status["conditions"]}
    assert reasons.pop("Suspended") == ("False", "Suspending")
    assert reasons["TelemetryAvailable"] == ("False", "Suspended")
    assert reasons["PlanConverged"] == ("Unknown", "Suspended")
    job.until(lambda job: job.holds("Suspended"))
    later = {each["type"]: (each["status"], each["reason"]) for each in job.status["conditions"]}
    assert {kind: later[kind] for kind in reasons} == reasons


@pytest.mark.parametrize("left", ["None", "Running", "All"])
def test_a_job_that_has_ended_is_never_called_suspended(left):
    job = Watched(jobs.group("a", 2), runPolicy={"cleanPodPolicy": left})
    job.until(lambda job: job.holds("Complete"))
    job.it.body["spec"]["suspend"] = True
    for _ in range(40):
        job.step()
        said = job.condition("Suspended")
        assert (said["status"], said["reason"]) == ("False", "Ended")
        assert job.holds("Complete")


def test_the_time_of_a_transition_is_that_of_the_status_not_of_the_message():
    job = Watched(jobs.group("a", 2)).until(lambda job: job.holds("Running"))
    since = job.condition("Running")["lastTransitionTime"]
    job.it.length = 1000
    for _ in range(5):
        job.step()
    assert job.condition("Running")["lastTransitionTime"] == since


def test_a_condition_that_somebody_else_set_stays():
    job = Watched(jobs.group("a", 2))
    foreign = {"type": "Billed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "x"}
    world = job.it.world()
    found = job_status(world, job.it.operate(), {"conditions": [foreign]}, {})
    assert found["conditions"][-1] == foreign


def running():
    job = Watched(jobs.group("a", 2), compression={"algorithm": "Laplace", "densityPermille": 10})
    job.it.length = 1000
    return job.until(lambda job: job.holds("Running"))


def hears(job, **said):
    """One more decision, with something that the coordinator says."""
    world = job.it.world()
    world = replace(world, coordinator=replace(world.coordinator, **said))
    job.write(world, job.it.operate())


def test_a_plan_converges_when_the_ranks_follow_it():
    job = running()
    assert job.condition("PlanConverged")["reason"] == "Pending"
    hears(job, applied_plan=1)
    assert job.holds("PlanConverged")
    assert job.status["plan"]["densityPermille"] == 10
    assert (job.status["plan"]["generation"], job.status["plan"]["appliedGeneration"]) == (1, 1)
    changed = job.status["plan"]["lastChangeTime"]
    job.it.tick(100)
    hears(job, applied_plan=1)
    assert job.status["plan"]["lastChangeTime"] == changed


def test_telemetry_is_shown_in_whole_numbers():
    job = running()
    assert job.condition("TelemetryAvailable")["reason"] == "NoSample"
    ranks = [{"rank": 0, "host": "a-0", "stepSeconds": 0.2}, {"rank": 1, "host": "a-1", "stepSeconds": 0.3}]
    hears(job, telemetry={**TELEMETRY, "time": job.it.now, "densityPermille": 10, "ranks": ranks})
    assert job.holds("TelemetryAvailable")
    shown = dict(job.status["telemetry"])
    shown.pop("lastSampleTime")
    assert shown == {
        "step": 7,
        "stepMilliseconds": 200,
        "waitPercent": 25,
        "wireBytesPerStep": 4096,
        "denseBytesPerStep": 65536,
        "densityPermille": 10,
        "slowestWorker": "a-1",
    }


@pytest.mark.parametrize("clock", [-7200.0, 7200.0], ids=["behind", "ahead"])
def test_how_old_telemetry_is_is_what_the_coordinator_says_whatever_clock_its_host_has(clock):
    job = running()
    theirs = {**TELEMETRY, "time": job.it.now + clock}
    hears(job, telemetry=theirs, telemetry_age=59.0)
    assert job.holds("TelemetryAvailable")
    assert job.status["telemetry"]["lastSampleTime"] == written(job.it.now - 59.0)
    hears(job, telemetry=theirs, telemetry_age=61.0)
    assert job.condition("TelemetryAvailable")["reason"] == "Stale"


def test_the_last_step_is_shown_when_the_job_ends_however_soon_it_follows_the_one_before():
    job = running()
    hears(job, telemetry={**TELEMETRY, "step": 90}, telemetry_age=1.0)
    hears(job, telemetry={**TELEMETRY, "step": 95}, telemetry_age=0.5)
    assert job.status["telemetry"]["step"] == 90
    hears(job, telemetry={**TELEMETRY, "step": 100}, telemetry_age=0.1)
    assert job.status["telemetry"]["step"] == 90
    job.it.progress = replace(job.it.progress, finished=job.it.now, succeeded=True)
    hears(job, telemetry={**TELEMETRY, "step": 100}, telemetry_age=0.1)
    assert job.status["telemetry"]["step"] == 100


def test_old_telemetry_is_stale():
    job = running()
    hears(job, telemetry={**TELEMETRY, "time": job.it.now - 61})
    assert job.condition("TelemetryAvailable")["reason"] == "Stale"
    assert job.status["telemetry"]["step"] == 7


def test_samples_are_not_written_more_often_than_every_thirty_seconds():
    job = running()
    now = job.it.now
    for later, step in ((0, 1), (15, 2), (29, 3), (31, 4), (-5, 5)):
        hears(job, telemetry={**TELEMETRY, "time": now + later, "step": step})
        assert job.status["telemetry"]["step"] == {0: 1, 15: 1, 29: 1, 31: 4, -5: 5}[later]


def test_a_silent_coordinator_leaves_what_is_not_known_open():
    job = running()
    job.it.deaf = True
    job.step()
    assert job.condition("RendezvousReady")["status"] == "Unknown"
    assert job.condition("PlanConverged")["status"] == "Unknown"


def test_a_job_that_cannot_be_run_says_why_in_the_column_that_people_see():
    error = SpecError("spec.workerGroups[0].template", "is wrong")
    status = invalid_status(error, {}, generation=3, now=1000.0)
    VALIDATOR.validate(status)
    assert {item["type"]: item["reason"] for item in status["conditions"]} == {
        "Admitted": "InvalidSpec",
        "Running": "InvalidSpec",
    }
    assert "spec.workerGroups[0].template: is wrong" in status["conditions"][0]["message"]


TIMES = st.floats(1e9, 2e9).map(lambda time: round(time, 6))
RECORDS = st.builds(
    Progress,
    generation=st.integers(0, 99),
    waiting_since=st.none() | TIMES,
    waited_since=st.none() | TIMES,
    retry_at=st.just(0.0) | TIMES,
    started=st.none() | TIMES,
    running=st.booleans(),
    absent=st.lists(st.sampled_from(["a-0", "a-1"]), unique=True).map(tuple),
    sizes=st.just((("a", 2), ("b", 1))) | st.just(()),
    compression=st.none() | st.builds(Compression, algorithm=st.none() | st.sampled_from(ALGORITHMS)),
    plan=st.sampled_from(["", "0123456789abcdef"]),
    finished=st.none() | TIMES,
    succeeded=st.booleans(),
)


@settings(max_examples=100)
@given(RECORDS)
def test_what_the_operator_recorded_it_reads_again(progress):
    written = without_nulls(record(progress))
    VALIDATOR.validate(written)
    assert recall(written) == progress


def test_a_new_job_has_an_empty_record():
    assert recall({}) == Progress()


OF_EARLIER_VERSIONS = {
    "generation": 3,
    "attempt": 2,
    "givenUp": 1,
    "givenUpAttempt": 0,
    "restarts": 1,
    "overtaken": 0,
    "setbacks": 2,
    "roster": 4,
    "planGeneration": 1,
    "waitedSince": "2026-01-01T00:00:00.000000Z",
    "retryAt": "2026-01-01T00:00:01.500000Z",
    "started": "2026-01-01T00:00:02.000000Z",
    "changed": "2026-01-01T00:00:05.250000Z",
    "running": True,
    "succeeded": False,
    "members": "0123456789abcdef",
    "compression": {"algorithm": "TopK", "densityPermille": 20},
    "plan": "fedcba9876543210",
    "absent": ["worker-1"],
    "sizes": [{"name": "worker", "replicas": 2}],
}


def test_what_an_earlier_version_recorded_is_read_and_then_takes_one_field():
    VALIDATOR.validate({"progress": OF_EARLIER_VERSIONS})
    began = 1767225600.0
    progress = Progress(
        generation=3,
        attempt=2,
        given_up=1,
        restarts=1,
        failures=1,
        placement_failures=2,
        roster=4,
        plan_generation=1,
        waited_since=began,
        retry_at=began + 1.5,
        started=began + 2.0,
        changed=began + 5.25,
        running=True,
        members="0123456789abcdef",
        compression=Compression(algorithm="TopK", density_permille=20),
        plan="fedcba9876543210",
        absent=("worker-1",),
        sizes=(("worker", 2),),
    )
    assert recall({"progress": OF_EARLIER_VERSIONS}) == progress
    assert recall({"progress": OF_EARLIER_VERSIONS, **without_nulls(record(Progress(generation=9)))}) == (
        Progress(generation=9)
    )


def test_the_largest_record_fits_into_its_field():
    host = "worker-" + "x" * 30
    absent = tuple(f"{host}-{index}" for index in range(MAX_WORKERS + 1))
    sizes = tuple((f"{host}-{index}", MAX_WORKERS) for index in range(MAX_GROUPS))
    VALIDATOR.validate(without_nulls(record(Progress(absent=absent, sizes=sizes))))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("{", "status.record: cannot be '{'", id="not JSON"),
        pytest.param("[" * 60_000, "status.record: cannot be '[[[", id="deep"),
        pytest.param("[]", "status.record: cannot be []", id="not an object"),
        pytest.param('{"restarts":true}', "status.record.restarts: cannot be True", id="not a number"),
        pytest.param('{"restarts":-1}', "status.record.restarts: is -1", id="negative"),
        pytest.param('{"started":NaN}', "status.record.started: cannot be nan", id="not a time"),
        pytest.param('{"sizes":[["a"]]}', "status.record.sizes: cannot be [['a']]", id="not a size"),
        pytest.param('{"absent":[1]}', "status.record.absent: cannot be [1]", id="not a host"),
        pytest.param(
            '{"compression":{"algorithm":1}}', "status.record.compression.algorithm", id="compression"
        ),
    ],
)
def test_a_record_that_was_never_written_is_refused(text, words):
    with pytest.raises(RecordError) as refusal:
        recall({"record": text})
    assert str(refusal.value).startswith(words)

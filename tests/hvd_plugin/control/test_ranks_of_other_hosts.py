"""A host reports its own ranks only; what it says of others is refused, counted, and changes nothing."""

import json

import pytest

from gradsieve_hvd.control.fields import Fields, Refused
from gradsieve_hvd.control.job_state_machine import JobStateMachine
from gradsieve_hvd.control.messages import Incarnation, Place, Registration, Roster
from gradsieve_hvd.control.rank_samples import SILENT_SECONDS
from gradsieve_hvd.control.status import metrics_text, status_json
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry, read_report

HOSTS = ("h0", "h1", "h2")


class Job:
    """A running job with two ranks on each of three hosts; time passes when it is told to."""

    def __init__(self):
        self.now = 100.0
        self.machine = JobStateMachine(lambda: self.now)
        places = tuple(Place(host, f"uid-{host}", 2) for host in HOSTS)
        self.machine.set_roster(Roster(1, ("true",), "Gloo", places))
        for host in HOSTS:
            self.machine.register(Registration(Incarnation(host, f"uid-{host}"), 1, 2))
        self.machine.start()
        self.machine.running()

    @property
    def window(self):
        return self.machine.measured.window.to_json()

    def tell(self, host, *numbers, step=10, plan=0, work=0.1, generation=1, uid=None):
        rows = [RankTelemetry(rank, host, work, 0.02, None, None, generation, plan, step) for rank in numbers]
        self.machine.take_ranks(Incarnation(host, uid or f"uid-{host}"), rows)

    def tell_all(self, **more):
        for number, host in enumerate(HOSTS):
            self.tell(host, 2 * number, 2 * number + 1, **more)

    def sample(self, step=10, plan=0, host="h0", ranks=()):
        numbers = {
            "stepSeconds": 0.12,
            "waitSeconds": 0.02,
            "time": 0.0,
            "appliedPlanGeneration": float(plan),
        }
        self.machine.take(host, Telemetry(1, 11, numbers, tuple(ranks), measured_step=step))


def status_of(call):
    with pytest.raises(Refused) as refusal:
        call()
    return refusal.value.status, str(refusal.value)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        pytest.param((2,), "rank 2 of h1", id="another host's"),
        pytest.param((0, 1, 2), "rank 2 of h1", id="another host's among its own"),
        pytest.param((6,), "rank 6, which there is not", id="nobody's"),
    ],
)
def test_an_agent_that_names_ranks_of_another_host_is_refused_and_the_window_stays_as_it_was(numbers, said):
    job = Job()
    job.tell_all()
    job.sample()
    before, shown = job.window, job.machine.measured.telemetry
    status, reason = status_of(lambda: job.tell("h0", *numbers, work=9.0, step=11))
    assert (status, said in reason) == (403, True)
    assert "use the same gradsieve for workers as for their coordinator" in reason.lower()
    assert (job.window, job.machine.measured.telemetry) == (before, shown)
    assert job.machine.refused_reports == 1
    assert status_json(job.machine, None)["refusedReports"] == 1
    assert b"gradsieve_refused_reports_total 1.0" in metrics_text(job.machine)


def test_rank_zero_of_an_earlier_version_that_speaks_for_all_is_refused_with_what_to_do():
    job = Job()
    job.tell_all()
    job.sample()
    before = job.window
    rows = [RankTelemetry(rank, HOSTS[rank // 2], 5.0) for rank in range(6)]
    status, reason = status_of(lambda: job.sample(None, ranks=rows))
    assert (status, "Use the same gradsieve for workers" in reason) == (403, True)
    assert (job.window, job.machine.refused_reports) == (before, 1)


def test_rank_zero_of_an_earlier_version_may_speak_for_the_only_host():
    machine = JobStateMachine()
    machine.set_roster(Roster(1, ("true",), "MPI", (Place("h0", "a", 2),)))
    machine.register(Registration(Incarnation("h0", "a"), 1, 2))
    machine.start()
    rows = [{"rank": rank, "host": "h0", "stepSeconds": 0.1 + rank, "waitSeconds": 0.0} for rank in (0, 1)]
    sample = {"generation": 1, "step": 5, "stepSeconds": 1, "waitSeconds": 0, "time": 0, "ranks": rows}
    machine.take("h0", Telemetry.read(Fields.parse(json.dumps(sample), "telemetry")))
    assert machine.measured.window.to_json()["work"]["slowest"] == 1.1
    assert machine.measured.telemetry.to_json() == sample


def test_what_another_agent_of_a_host_or_ranks_of_before_still_say_is_late_and_counts_as_no_forgery():
    job = Job()
    assert status_of(lambda: job.tell("h0", 0, uid="old"))[0] == 409
    assert status_of(lambda: job.tell("h0", 0, generation=0))[0] == 409
    job.sample(step=None)
    assert (job.window, job.machine.refused_reports) == (None, 0)


def test_a_sample_waits_for_what_all_ranks_have_measured_after_the_same_step():
    job = Job()
    job.tell("h0", 0, 1)
    job.tell("h1", 2, 3)
    job.sample()
    assert job.window is None
    job.tell("h1", 2, 3, step=20, work=7.0)
    job.tell("h2", 4, 5, work=0.3)
    assert (job.window["samples"], job.window["work"]["slowest"], job.window["silentRanks"]) == (1, 0.3, 0)


def test_who_has_missed_a_step_counts_with_its_last_word():
    job = Job()
    job.tell_all(step=10)
    job.sample(step=10)
    job.tell("h0", 0, 1, step=20)
    job.tell("h1", 2, 3, step=20)
    job.sample(step=20)
    assert job.window["samples"] == 1
    job.tell_all(step=30)
    job.sample(step=30)
    assert (job.window["samples"], job.window["ranks"]) == (3, 6)


def test_ranks_that_step_at_their_own_pace_do_not_wait_for_each_other():
    job = Job()
    job.tell_all(step=None)
    job.sample(step=None)
    job.tell("h0", 0, 1, step=None, work=0.2)
    job.sample(step=None)
    assert (job.window["samples"], job.window["work"]["slowest"]) == (2, pytest.approx(0.15))


def test_what_ranks_have_measured_under_another_plan_does_not_count():
    job = Job()
    job.tell_all(step=None, plan=1)
    job.sample(step=None, plan=1)
    job.tell("h0", 0, 1, step=None, plan=2)
    job.sample(step=None, plan=2)
    assert job.window["planGeneration"] == 1
    job.tell_all(step=None, plan=2)
    job.sample(step=None, plan=2)
    assert (job.window["planGeneration"], job.window["samples"]) == (2, 1)


def test_a_host_that_falls_silent_is_left_out_named_and_counted():
    job = Job()
    job.tell_all(work=0.3)
    job.sample()
    job.now += SILENT_SECONDS + 1
    job.tell("h0", 0, 1, step=20)
    job.tell("h1", 2, 3, step=20)
    job.sample(step=20)
    job.sample(step=30)
    assert (job.window["ranks"], job.window["samples"]) == (4, 1)
    assert (job.window["silentRanks"], job.window["silentHosts"]) == (2, ["h2"])
    assert [rank.rank for rank in job.machine.measured.telemetry.ranks] == [0, 1, 2, 3]
    job.tell_all(step=40)
    job.sample(step=40)
    assert (job.window["ranks"], job.window["silentRanks"]) == (6, 0)


def test_when_all_fall_silent_there_is_no_window_left():
    job = Job()
    job.tell_all()
    job.sample()
    job.now += SILENT_SECONDS + 1
    job.sample(step=20)
    job.sample(step=30)
    assert job.window is None
    assert job.machine.measured.age == 0.0


def test_a_rank_whose_steps_take_long_is_not_silent_before_some_of_them_and_one_that_lies_is_at_last():
    job = Job()
    job.tell_all(step=None, work=20.0)
    job.now += 150.0
    job.sample(step=None)
    assert job.window["silentRanks"] == 0
    job.tell_all(step=None, work=1e18)
    job.now += 601.0
    job.sample(step=None)
    assert job.window is None


def test_ranks_that_got_other_numbers_are_believed_of_these_only():
    job = Job()
    job.tell_all()
    job.machine.measured.number(["h1", "h1", "h0", "h0"])
    job.tell("h0", 0, 1, work=9.0)
    assert status_of(lambda: job.tell("h1", 4))[0] == 403
    job.tell("h0", 2, 3)
    job.tell("h1", 0, 1)
    job.sample(host="h1")
    assert (job.window["ranks"], job.window["work"]["slowest"]) == (4, 0.1)
    assert status_of(lambda: job.sample(host="h0"))[0] == 403


def test_numbers_of_a_start_under_which_nobody_has_spoken_excuse_nobody():
    job = Job()
    job.machine.measured.number(["h1", "h1", "h0", "h0"])
    assert status_of(lambda: job.tell("h0", 0))[0] == 403


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [{"rank": 0}],
        [{"rank": "0", "stepSeconds": 1}],
        [{"rank": 0, "stepSeconds": -1}],
        [{"rank": 0, "stepSeconds": 1e300}],
        [{"rank": 0, "stepSeconds": 1, "measuredStep": -1}],
        [{"rank": 0, "stepSeconds": 1, "appliedPlanGeneration": 1.5}],
        "many",
        [3],
    ],
    ids=str,
)
def test_a_report_that_is_none_is_refused(ranks):
    with pytest.raises(Refused):
        read_report(Fields({"ranks": ranks}, "samples"), "h0")

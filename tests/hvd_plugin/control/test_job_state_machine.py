"""The coordinator's state machine: who may take part, and what a refused operation leaves behind."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gradsieve_hvd.control.contract import STATES
from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.job_state_machine import End, JobStateMachine
from gradsieve_hvd.control.messages import Incarnation, Place, Plan, Registration, Roster
from gradsieve_hvd.control.plain_hosts import Restarts, parse_hosts
from gradsieve_hvd.control.registry import Fenced, Registry
from gradsieve_hvd.control.status import status_json
from gradsieve_hvd.control.telemetry import Telemetry


def registration(host, uid, generation=1, slots=1):
    return Registration(Incarnation(host, uid), generation, slots)


def roster(generation, *hosts, backend="MPI", command=("true",), **more):
    places = tuple(Place(host, uid, 1) for host, uid in (word.split(":") for word in hosts))
    return Roster(generation, command, backend, places, **more)


def running(job, *hosts, generation=1, backend="MPI"):
    job.set_roster(roster(generation, *hosts, backend=backend))
    for word in hosts:
        job.register(registration(*word.split(":"), generation))
    job.start()
    job.running()
    return job


def test_it_starts_when_all_have_registered_with_the_right_uid():
    job = JobStateMachine()
    job.set_roster(roster(1, "h0:a", "h1:b"))
    job.register(registration("h0", "a"))
    job.register(registration("h1", "z"))
    assert not job.may_start
    assert (job.registry.missing(), job.message) == (["h1"], "waiting for h1")
    job.register(registration("h1", "b"))
    assert job.may_start


def test_agents_may_come_before_the_roster():
    job = JobStateMachine()
    job.register(registration("h0", "a"))
    job.set_roster(roster(1, "h0:a"))
    assert job.may_start


def test_an_incarnation_of_an_older_generation_is_fenced():
    job = running(JobStateMachine(), "h0:a", generation=2)
    with pytest.raises(Fenced, match="generation 1 is not in the roster of generation 2"):
        job.register(registration("h0", "old", generation=1))


def test_a_successor_may_wait_for_the_roster_that_names_it_and_the_predecessor_is_fenced_for_ever():
    job = running(JobStateMachine(), "h0:a", "h1:b")
    job.register(registration("h1", "c", generation=2))
    assert job.registry.admitted("h1") == Incarnation("h1", "b")
    job.lose(("h1",), "lost h1")
    assert job.set_roster(roster(2, "h0:a", "h1:c")) == [Incarnation("h1", "b")]
    assert job.may_start
    with pytest.raises(Fenced, match="has taken this one's place"):
        job.register(registration("h1", "b", generation=9))


def test_a_newcomer_waits_for_its_roster_however_many_come_before_that():
    job = running(JobStateMachine(), "h0:a")
    job.set_roster(roster(3, "h0:a"))
    job.register(registration("h1", "b", generation=2))
    job.set_roster(roster(4, "h0:a"))
    assert job.registry.connected.keys() == {Incarnation("h0", "a"), Incarnation("h1", "b")}
    assert job.registry.admitted("h1") is None
    job.set_roster(roster(5, "h0:a", "h1:b"))
    assert job.registry.admitted("h1") == Incarnation("h1", "b")


def test_an_old_incarnation_that_waits_is_fenced_by_the_roster_that_names_its_successor():
    job = JobStateMachine()
    job.set_roster(roster(3, "h0:a"))
    job.register(registration("h1", "old", generation=1))
    assert job.set_roster(roster(4, "h0:a", "h1:new")) == [Incarnation("h1", "old")]


def test_survivors_of_an_older_generation_stay():
    job = running(JobStateMachine(), "h0:a", "h1:b")
    job.disconnect(Incarnation("h1", "b"))
    job.lose(("h1",), "lost h1")
    job.set_roster(roster(2, "h0:a", "h1:c"))
    job.register(registration("h1", "c", generation=2))
    assert job.start().generation == 2


def test_after_a_loss_nothing_starts_before_a_higher_generation():
    job = running(JobStateMachine(), "h0:a")
    job.lose(("h0",), "lost h0")
    assert (job.state, job.may_start, job.lost_hosts) == (
        "Lost",
        False,
        ("h0",),
    )
    with pytest.raises(Refused, match="raise the generation"):
        job.set_roster(roster(1, "h0:b"))
    job.set_roster(roster(2, "h0:a"))
    assert job.may_start


def test_after_a_stop_nothing_starts_before_a_higher_generation():
    job = running(JobStateMachine(), "h0:a")
    job.stop("suspended")
    assert (job.state, job.may_start, job.message) == (
        "Waiting",
        False,
        "stopped: suspended",
    )
    job.set_roster(roster(1, "h0:a"))
    assert not job.may_start
    job.set_roster(roster(2, "h0:a"))
    assert job.may_start


def test_a_higher_generation_restarts_mpi_and_extends_gloo_in_place():
    for backend, restart in (("MPI", True), ("Gloo", False)):
        job = running(JobStateMachine(), "h0:a", backend=backend)
        job.set_roster(roster(2, "h0:a", "h1:b", backend=backend))
        assert (job.must_restart, job.state) == (restart, "Running")


def test_a_gloo_job_takes_new_incarnations_up_with_the_same_generation_too():
    job = running(JobStateMachine(), "h0:a", "h1:b", backend="Gloo")
    job.set_roster(roster(1, "h0:a", "h1:c", backend="Gloo"))
    assert not job.must_restart
    with pytest.raises(Refused, match="raise the generation"):
        job.set_roster(roster(1, "h0:a", "h1:c", backend="Gloo", command=("false",)))


def compression(**asked):
    return {"environment": {"GRADSIEVE_COMPRESSION": json.dumps(asked)}}


@pytest.mark.parametrize(
    ("before", "after", "restart"),
    [
        pytest.param({"densityPermille": 10}, {"densityPermille": 20}, False, id="another density"),
        pytest.param({}, {"densityPermille": 20}, False, id="a first density"),
        pytest.param({"maxDensityPermille": 20}, {"minDensityPermille": 5}, False, id="another limit"),
        pytest.param({"algorithm": "TopK"}, {"algorithm": "Laplace"}, True, id="another algorithm"),
        pytest.param({"densityPermille": 10}, {"algorithm": "TopK"}, True, id="a first algorithm"),
    ],
)
def test_a_gloo_job_goes_on_in_place_when_a_roster_brings_hosts_and_what_the_plan_tells(
    before, after, restart
):
    job = JobStateMachine()
    job.set_roster(roster(1, "h0:a", "h1:b", backend="Gloo", **compression(**before)))
    for host, uid in (("h0", "a"), ("h1", "b")):
        job.register(registration(host, uid))
    job.start()
    job.running()
    job.set_roster(roster(2, "h0:a", "h1:c", backend="Gloo", **compression(**after)))
    assert job.must_restart is restart


@pytest.mark.parametrize("text", ["no JSON", "[1]", "[" * 100_000], ids=["no JSON", "a list", "deep"])
def test_a_compression_that_cannot_be_read_is_compared_as_it_is(text):
    for other, restart in ((text, False), (f"{text} ", True)):
        job = running(JobStateMachine(), "h0:a", backend="Gloo")
        job.roster = replace(job.roster, environment={"GRADSIEVE_COMPRESSION": text})
        job.set_roster(roster(2, "h0:a", backend="Gloo", environment={"GRADSIEVE_COMPRESSION": other}))
        assert job.must_restart is restart


def test_a_gloo_job_that_was_stopped_after_it_was_extended_stays_stopped():
    job = running(JobStateMachine(), "h0:a", backend="Gloo")
    job.set_roster(roster(2, "h0:a", backend="Gloo", min_hosts=1))
    job.stop("suspended")
    assert not job.may_start


def test_a_lower_generation_and_a_roster_after_the_end_are_refused():
    job = running(JobStateMachine(), "h0:a", generation=5)
    with pytest.raises(Refused, match="generation 5 is in force") as refusal:
        job.set_roster(roster(4, "h0:a"))
    assert refusal.value.status == 409
    job.finish(End(0, "done"))
    with pytest.raises(Refused, match="the job is over"):
        job.set_roster(roster(6, "h0:a"))
    assert job.set_roster(job.roster) == []


def test_the_first_end_counts():
    job = running(JobStateMachine(), "h0:a")
    job.finish(End(3, "rank 0 exited with status 3"))
    job.finish(End(0, "done"))
    job.stop("late")
    assert (job.state, job.end.status) == ("Failed", 3)


def test_telemetry_is_taken_from_rank_zeros_host_and_the_running_generation_only():
    job = running(JobStateMachine(), "h0:a", "h1:b", generation=2)
    sample = Telemetry(2, 10, {})
    job.take("h0", sample)
    for host, telemetry, status in [("h1", sample, 403), ("h0", Telemetry(1, 11, {}), 409)]:
        with pytest.raises(Refused) as refusal:
            job.take(host, telemetry)
        assert refusal.value.status == status
    assert job.measured.telemetry == sample


def test_a_sample_is_as_old_as_it_has_been_here_whatever_its_hosts_clock_shows():
    now = [100.0]
    job = running(JobStateMachine(lambda: now[0]), "h0:a")
    assert job.measured.age is None
    job.take("h0", Telemetry(1, 10, {"time": 1e9}))
    now[0] = 107.5
    assert job.measured.age == 7.5
    assert status_json(job, None)["telemetryAge"] == 7.5
    job.take("h0", Telemetry(1, 11, {"time": 1.0}))
    assert job.measured.age == 0.0


def test_a_plan_may_be_repeated_and_replaced_by_a_newer_one_only():
    job = JobStateMachine()
    job.set_plan(Plan(2, {"generation": 2, "densityPermille": 10}))
    job.set_plan(Plan(2, {"generation": 2, "densityPermille": 10}))
    for generation, density in [(1, 5), (2, 5)]:
        with pytest.raises(Refused, match="generation 2 is in force"):
            job.set_plan(Plan(generation, {"generation": generation, "densityPermille": density}))
    job.set_plan(Plan(3, {"generation": 3}))


def test_too_few_slots_are_refused_with_what_to_do():
    job = JobStateMachine()
    job.set_roster(Roster(1, ("true",), "MPI", (Place("h0", "a", 2),)))
    with pytest.raises(Refused, match="start its agent with --slots"):
        job.register(registration("h0", "a", slots=1))


def test_a_host_cannot_fill_the_memory_with_incarnations():
    job = JobStateMachine()
    for number in range(4):
        job.register(registration("h0", f"u{number}"))
    with pytest.raises(Refused, match="wait for this host already"):
        job.register(registration("h0", "one-more"))


def test_a_host_is_missed_from_when_it_is_awaited_or_has_gone_until_it_registers():
    clock = [100.0]
    registry = Registry(lambda: clock[0])
    registry.adopt(roster(1, "h0:a", "h1:b"))
    clock[0] = 105.0
    registry.register(registration("h0", "a"))
    assert registry.missing_seconds() == {"h1": 5.0}
    registry.register(registration("h1", "b"))
    assert registry.missing_seconds() == {}
    clock[0] = 200.0
    registry.disconnect(Incarnation("h0", "a"))
    clock[0] = 203.0
    assert registry.missing_seconds() == {"h0": 3.0}


def test_a_new_roster_does_not_shorten_for_how_long_a_host_is_missed_but_a_successor_is_missed_anew():
    clock = [0.0]
    registry = Registry(lambda: clock[0])
    registry.adopt(roster(1, "h0:a", "h1:b"))
    clock[0] = 30.0
    registry.adopt(roster(2, "h0:a", "h1:c"))
    clock[0] = 40.0
    assert registry.missing_seconds() == {"h0": 40.0, "h1": 10.0}


def test_on_plain_hosts_the_first_agent_counts_and_a_second_is_fenced_while_it_is_there():
    job = JobStateMachine()
    job.set_roster(Roster(1, ("true",), "MPI", parse_hosts("h0,h1")))
    job.register(registration("h0", "a", generation=0))
    with pytest.raises(Fenced, match="another agent has registered"):
        job.register(registration("h0", "b", generation=0))
    job.disconnect(Incarnation("h0", "a"))
    job.register(registration("h0", "b", generation=0))
    assert job.registry.uid("h0") == "a"


def lost_plain(hosts, min_hosts=None, restarts=1):
    job = JobStateMachine()
    job.set_roster(Roster(1, ("true",), "MPI", parse_hosts(hosts), min_hosts=min_hosts))
    for place in parse_hosts(hosts):
        job.register(registration(place.host, f"{place.host}-a", generation=0, slots=place.slots))
    job.start()
    job.disconnect(Incarnation("h1", "h1-a"))
    job.lose(("h1",), "lost h1")
    return job, Restarts(restarts)


def test_plain_hosts_wait_for_a_new_agent_in_the_place_of_a_lost_one():
    job, restarts = lost_plain("h0:2,h1:2")
    job.set_roster(restarts(job, ["h1"]))
    assert (job.generation, job.registry.missing()) == (2, ["h1"])
    with pytest.raises(Fenced):
        job.register(registration("h1", "h1-a", generation=0, slots=2))
    job.register(registration("h1", "h1-b", generation=0, slots=2))
    assert job.may_start
    assert [place.slots for place in job.start().hosts] == [2, 2]
    assert restarts(job, ["h1"]) is None


def test_plain_hosts_go_on_without_a_lost_one_if_enough_are_left():
    job, restarts = lost_plain("h0,h1,h2", min_hosts=2)
    job.set_roster(restarts(job, ["h1"]))
    assert job.may_start
    assert [place.host for place in job.start().hosts] == ["h0", "h2"]


HOSTS, UIDS, GENERATIONS = st.sampled_from("xy"), st.sampled_from("abc"), st.integers(0, 4)


def view(job):
    """Return all that a refused operation must leave as it was."""
    state = {name: value for name, value in vars(job).items() if name not in ("registry", "measured")}
    return copy.deepcopy((state, vars(job.registry), vars(job.measured)))


class Job(RuleBasedStateMachine):
    """Whatever comes in whatever order, no two incarnations of a host are admitted."""

    def __init__(self):
        super().__init__()
        self.job = JobStateMachine()
        self.fenced = set()
        self.generation = 0

    def attempt(self, call):
        before = view(self.job)
        try:
            return call()
        except Refused as refusal:
            assert view(self.job) == before
            return refusal

    @rule(host=HOSTS, uid=UIDS, generation=GENERATIONS)
    def register(self, host, uid, generation):
        outcome = self.attempt(lambda: self.job.register(registration(host, uid, generation)))
        if (host, uid) in self.fenced and not self.job.registry.is_admitted(Incarnation(host, uid)):
            assert isinstance(outcome, Fenced)

    @rule(host=HOSTS, uid=UIDS)
    def disconnect(self, host, uid):
        self.job.disconnect(Incarnation(host, uid))

    @rule(
        hosts=st.dictionaries(HOSTS, UIDS, min_size=1),
        generation=GENERATIONS,
        backend=st.sampled_from(["MPI", "Gloo"]),
    )
    def set_roster(self, hosts, generation, backend):
        words = [f"{host}:{uid}" for host, uid in sorted(hosts.items())]
        old = self.job.roster
        outcome = self.attempt(lambda: self.job.set_roster(roster(generation, *words, backend=backend)))
        if not isinstance(outcome, Refused):
            places = () if old is None else old.hosts
            self.fenced |= {(place.host, place.uid) for place in places}

    @rule()
    def start(self):
        if self.job.may_start:
            assert self.job.start().generation == self.job.generation

    @rule()
    def run(self):
        self.job.running()

    @rule(kind=st.sampled_from(["lose", "stop", "restart"]))
    def end_generation(self, kind):
        if self.job.active and kind == "lose":
            self.job.lose(("x",), "lost x")
        elif self.job.active and kind == "stop":
            self.job.stop("told to")
        elif self.job.must_restart:
            self.job.restart()

    @rule(status=st.sampled_from([0, 1]))
    def finish(self, status):
        if self.job.active and status:
            self.job.finish(End(status, "end"))

    @invariant()
    def everything_holds_together(self):
        job = self.job
        assert job.state in STATES
        assert job.generation >= self.generation, "a generation never goes back"
        self.generation = job.generation
        assert (job.end is None) == (job.state not in ("Succeeded", "Failed"))
        if job.may_start:
            assert not job.active
            assert all(job.registry.admitted(place.host).uid == place.uid for place in job.roster.hosts)
        if job.roster is not None:
            assert {place.host: place.uid for place in job.roster.hosts} == {
                host: job.registry.uid(host) for host in "xy" if job.registry.uid(host)
            }


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=80, stateful_step_count=25)

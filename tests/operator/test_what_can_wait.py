"""What another operator would find out again is written with something else, or once it has stayed so."""

from dataclasses import replace

import pytest

from gradsieve_operator.adapt import Memory as Adapted
from gradsieve_operator.adapt.memory import Trial
from gradsieve_operator.cluster import reporting
from gradsieve_operator.cluster.cache import Cache, Told
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.reporting import Statement, can_wait, difference
from gradsieve_operator.decide import Pace, Progress
from gradsieve_operator.status import recall, record

RUNNING = {"type": "Running", "status": "True", "reason": "Running", "message": ""}
HELD = {"type": "AdaptationHeld", "status": "True", "reason": "TooFewSamples", "message": ""}
PROGRESS = Progress(
    generation=1, running=True, adaptation=Adapted(asked="all", since=1.0, trial=Trial(1.0, 0.5, 0.2))
)
LOOKS = 15.0


def adapted(**changes):
    return replace(PROGRESS, adaptation=replace(PROGRESS.adaptation, **changes))


def status(reason="TooFewSamples", progress=PROGRESS, **besides):
    held = {**HELD, "reason": reason, "status": "False" if reason == "AsGoodAsItGets" else "True"}
    return {"conditions": [RUNNING, held], **record(progress), **besides}


class Job:
    """A job in a server that merges what is written; it is looked at every 15 s of a clock that is played."""

    def __init__(self, monkeypatch, pace):
        self.now, self.pace, self.memory = 1000.0, pace, Memory()
        self.kept, self.writes = status(), []
        monkeypatch.setattr(reporting.time, "monotonic", lambda: self.now)
        self.cache = Cache(self, (), Told(lambda _: None, lambda _: None, lambda _: None))

    async def merge(self, path, body):
        assert path.endswith("/research/horovodjobs/digits/status")
        self.writes.append(set(body["status"]))
        self.kept = {**self.kept, **body["status"]}
        return self.body()

    def post(self, *_, **__):
        pass

    def body(self):
        about = {"namespace": "research", "name": "digits", "uid": "uid", "resourceVersion": "1"}
        return {"metadata": about, "status": self.kept}

    async def look(self, found, progress=PROGRESS, *, done=False):
        statement = Statement(self, self.cache, self, self.body(), self.memory)
        statement.status = found
        again = await statement.write_in_turn(self.pace, progress, done=done)
        self.now += LOOKS
        return again

    @property
    def told(self):
        return self.kept["conditions"][1]["reason"]


async def test_reasons_on_the_way_to_a_change_are_written_with_it(monkeypatch):
    job = Job(monkeypatch, Pace(patience=60.0))
    assert await job.look(status("CoolDown")) == 60 + job.pace.adapted
    candidate = adapted(candidate="Balanced", candidate_since=9.0)
    assert await job.look(status("Confirming", candidate), candidate) == 60 - LOOKS + job.pace.adapted
    assert job.memory.unwritten.progress == candidate
    assert job.writes == []
    changed = adapted(since=30.0)
    await job.look(status("NotApplied", changed, plan={"generation": 2}), changed)
    assert job.writes == [{"conditions", "record", "plan"}]
    assert (job.told, recall(job.kept), job.memory.unwritten) == ("NotApplied", changed, None)


async def test_a_reason_that_stays_is_written_once_and_by_a_look_that_is_made_anyway(monkeypatch):
    job = Job(monkeypatch, Pace(patience=60.0))
    for _ in range(4):
        assert await job.look(status("AsGoodAsItGets")) > LOOKS
        assert job.writes == []
    for _ in range(4):
        assert await job.look(status("AsGoodAsItGets")) is None
    assert (job.writes, job.told) == ([{"conditions"}], "AsGoodAsItGets")


async def test_a_sample_that_is_written_takes_the_reason_along(monkeypatch):
    job = Job(monkeypatch, Pace(patience=60.0))
    await job.look(status("AsGoodAsItGets"))
    await job.look(status("AsGoodAsItGets", telemetry={"step": 7}))
    assert job.writes == [{"conditions", "telemetry"}]


async def test_among_few_jobs_everything_is_written_at_once(monkeypatch):
    job = Job(monkeypatch, Pace().among(32, busy=True))
    candidate = adapted(candidate="Balanced", candidate_since=9.0)
    job.pace = replace(job.pace, settling=0.0)
    await job.look(status("Confirming", candidate), candidate)
    assert (job.told, recall(job.kept)) == ("Confirming", candidate)


async def test_what_was_done_is_written_with_the_reason_at_once(monkeypatch):
    job = Job(monkeypatch, Pace(patience=60.0))
    await job.look(status("CoolDown"), done=True)
    assert job.told == "CoolDown"


@pytest.mark.parametrize(
    ("reason", "progress", "besides", "waits"),
    [
        pytest.param("CoolDown", PROGRESS, {}, True, id="another reason"),
        pytest.param("AsGoodAsItGets", PROGRESS, {}, True, id="nothing in the way any more"),
        pytest.param("Confirming", adapted(candidate="Local"), {}, True, id="what would be changed"),
        pytest.param("CoolDown", adapted(trial=None), {}, True, id="a change that has proved itself"),
        pytest.param("CoolDown", replace(PROGRESS, overtaken=1), {}, False, id="overtaken"),
        pytest.param("ProgramCannot", PROGRESS, {}, False, id="what the program cannot do"),
        pytest.param("CoolDown", adapted(since=9.0), {}, False, id="a change of the plan"),
        pytest.param("CoolDown", replace(PROGRESS, failures=1), {}, False, id="a failure besides"),
        pytest.param("CoolDown", PROGRESS, {"ready": 1}, False, id="a count besides"),
    ],
)
def test_only_what_is_found_out_again_waits(reason, progress, besides, waits):
    change = difference(status(), status(reason, progress, **besides))
    assert can_wait(status(), change, progress) == waits


def test_another_condition_that_changes_or_goes_does_not_wait():
    other = {"conditions": [{**RUNNING, "status": "False"}, {**HELD, "reason": "CoolDown"}]}
    assert not can_wait(status(), other, PROGRESS)
    assert not can_wait(status(), {"conditions": [RUNNING]}, PROGRESS)
    cannot = status("ProgramCannot")
    assert not can_wait(cannot, difference(cannot, status("CoolDown")), PROGRESS)


@pytest.mark.parametrize(("count", "seconds"), [(1, 0), (32, 0), (480, 30), (960, 60), (5000, 60)])
def test_the_more_jobs_there_are_the_longer_a_reason_may_wait(count, seconds):
    assert Pace().among(count).patience == seconds
    assert Pace().among(count, busy=True).patience == (120 if seconds else 0)

"""Lines of JSON for what becomes of jobs, where they are asked for."""

import asyncio
import io
import json

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, running_process, until

from gradsieve_operator import transitions
from gradsieve_operator.errors import SpecError

FIELDS = [
    "time", "namespace", "job", "uid", "generation", "condition", "status", "reason", "message",
    "previousStatus", "previousReason",
]  # fmt: skip
METADATA = {"namespace": "research", "name": "digits", "uid": "u"}


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def status(*found: tuple[str, str, str], message: str = "m") -> dict[str, object]:
    return {
        "conditions": [
            {"type": kind, "status": value, "reason": reason, "message": message, "observedGeneration": 4}
            for kind, value, reason in found
        ]
    }


def test_a_change_of_status_or_reason_is_a_line_and_one_of_the_message_is_none(stream):
    before = status(
        ("Admitted", "False", "NoPlace"), ("Running", "False", "NoPlace"), ("Failed", "False", "N")
    )
    after = status(("Admitted", "True", "Placed"), ("Running", "False", "Starting"), ("Failed", "False", "N"))
    transitions.log(METADATA, before, after)
    found = lines(stream)
    assert [list(line) for line in found] == [FIELDS] * 2
    first, second = found
    assert (first["job"], first["generation"], first["condition"]) == ("digits", 4, "Admitted")
    assert (first["previousStatus"], first["status"]) == ("False", "True")
    assert (second["previousReason"], second["reason"]) == ("NoPlace", "Starting")
    transitions.log(METADATA, after, {**after, **status(("Admitted", "True", "Placed"), message="other")})
    assert len(lines(stream)) == 2


def test_words_of_others_cannot_end_a_line_or_begin_one(stream):
    transitions.log(METADATA, {}, status(("Failed", "True", "R"), message='a"}\n{"job": "other"}\u2028'))
    (line,) = lines(stream)
    assert line["message"] == 'a"}\n{"job": "other"}\u2028'
    assert line["previousStatus"] is None


async def test_a_job_on_its_way_is_told_in_order_and_each_transition_once(server, stream):
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running() as operator:
        operator.queue.add(("research", "digits"))
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        await until(lambda: "Placed" in stream.getvalue())
    admitted = [line["reason"] for line in lines(stream) if line["condition"] == "Admitted"]
    assert admitted == ["Waiting", "Preparing", "Binding", "Placed"]


async def test_the_operators_process_writes_them_where_its_environment_asks_for_them(server, monkeypatch):
    monkeypatch.setenv("GRADSIEVE_LOG_TRANSITIONS", "json")
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running_process() as process, asyncio.timeout(60):
        line = b""
        while not line.startswith(b"{"):
            line = await process.stdout.readline()
            assert line, "the operator has ended"
    assert json.loads(line)["job"] == "digits"


def test_nothing_is_written_unless_it_is_asked_for(capsys):
    transitions.log(METADATA, {}, status(("Failed", "True", "R")))
    assert capsys.readouterr() == ("", "")
    assert transitions.wanted({"GRADSIEVE_LOG_TRANSITIONS": "json"})
    assert not transitions.wanted({})
    with pytest.raises(SpecError, match="GRADSIEVE_LOG_TRANSITIONS: must be 'json' or empty, not 'yaml'"):
        transitions.wanted({"GRADSIEVE_LOG_TRANSITIONS": "yaml"})

"""Nothing that others have written begins a line of the operator's log, or steers a terminal."""

import logging

import horovod_jobs as jobs
import pytest
from api_server import target
from hypothesis import given
from hypothesis import strategies as st
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster.coordinator_status import read_status
from gradsieve_operator.decide import read_pod
from gradsieve_operator.foreign_text import one_line

LAST_WORDS = "CUDA error\n2026-01-01 gradsieve-operator: research/digits: Complete\r\n\x1b[2Jgone\u202e"
IN_ONE_LINE = "CUDA error 2026-01-01 gradsieve-operator: research/digits: Complete \\x1b[2Jgone\\u202e"


@given(st.text())
def test_every_text_becomes_one_line_that_prints(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert not any(each < " " or "\x7f" <= each <= "\x9f" for each in line)
    assert one_line(line) == line
    if text.isprintable():
        assert line == text.strip()


def ended(words: str) -> dict:
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": words}}
    return {"phase": "Failed", "containerStatuses": [{"name": "train", "state": state}]}


def test_a_program_s_last_words_are_read_as_one_line():
    pod = {
        "metadata": {"name": "digits-worker-0-1"},
        "spec": {"containers": [{"name": "train"}]},
        "status": ended(LAST_WORDS),
    }
    assert read_pod(pod, "digits").message == IN_ONE_LINE


def test_a_coordinator_s_message_is_read_as_one_line():
    assert read_status({"state": "Lost", "message": LAST_WORDS}).message == IN_ONE_LINE


async def test_a_termination_message_forges_no_line_of_the_log_nor_an_event(server, caplog):
    caplog.set_level(logging.INFO)
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running() as operator:
        operator.queue.add(("research", "digits"))
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        server.objects["v1/pods", "research", "digits-coordinator-1"].patch({"status": ended(LAST_WORDS)})
        operator.queue.add(("research", "digits"))
        await until(lambda: any("CUDA" in each["message"] for each in server.all("v1/events").values()))
    for record in caplog.records:
        assert len(record.getMessage().splitlines()) <= 1
    said = [each["message"] for each in server.all("v1/events").values() if "CUDA" in each["message"]]
    assert all(IN_ONE_LINE in message for message in said)


@pytest.mark.parametrize("status", [403, 500])
async def test_a_webhook_s_refusal_is_read_as_one_line(server, status):
    import kmock

    def refuse(request):
        if "/pods/" in target(request):
            raise kmock.KubernetesError(status=status, reason="Forbidden", message=LAST_WORDS)

    server.before = refuse
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running() as operator:
        operator.queue.add(("research", "digits"))
        await until(lambda: "CUDA" in conditions(server).get("Admitted", {}).get("message", ""))
    assert IN_ONE_LINE in conditions(server)["Admitted"]["message"]

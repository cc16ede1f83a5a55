"""Planning happens in a process of its own, which is replaced when it dies and leaves time to others."""

import asyncio
import io
import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from operator_in_memory import admitted, conditions, running, submit, until
from worlds import GPU, cluster, gang, gpu_node, load, pods

from gradsieve_operator.cluster import planner_process, planner_program
from gradsieve_operator.cluster.planner_messages import LENGTH, Asker, Listener
from gradsieve_operator.cluster.planner_process import PlannerProcess
from gradsieve_operator.placement import Assignment, plan_queue

WORLD = cluster(gpu_node("a", "T4", 2), gpu_node("b", "T4", 2))
GANGS = [gang(*pods(count, requests={GPU: 1}), key=f"team/{count}", since=count) for count in (3, 2, 1)]


def expected() -> dict:
    found = plan_queue(WORLD, GANGS)
    return {
        key: dict(plan.nodes) if isinstance(plan, Assignment) else plan.message for key, plan in found.items()
    }


def planners() -> set[int]:
    """Return the processes of planners that are there, whoever started them in this process."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (process / "cmdline").read_text(), (process / "status").read_text()
        except OSError:
            continue
        if "planner_program" in command and f"PPid:\t{os.getpid()}\n" in status:
            found.add(int(process.name))
    return found


@pytest.fixture
async def planner():
    process = PlannerProcess()
    yield process
    await process.stop()


async def test_it_finds_what_is_found_here(planner):
    assert await planner.plan(WORLD, GANGS) == expected()


def test_what_was_said_before_is_read_as_what_it_was():
    asker, listener = Asker(), Listener()

    def heard(world, gangs):
        return listener.read(asker.question(world, gangs)[LENGTH.size :])

    first, gangs = heard(WORLD, GANGS)
    later = replace(GANGS[0], since=9.0)
    second, others = heard(WORLD.with_loads([load("a", gpu=1)]), [later, *GANGS[1:2]])
    assert (first, gangs) == (WORLD, GANGS)
    assert (second, others) == (WORLD.with_loads([load("a", gpu=1)]), [later, GANGS[1]])
    assert second.nodes is first.nodes
    assert others[1] is gangs[1]
    third, _ = heard(cluster(gpu_node("a", "T4", 1)), GANGS)
    assert third == cluster(gpu_node("a", "T4", 1))


async def test_one_that_was_killed_is_replaced(planner, caplog):
    await planner.plan(WORLD, GANGS)
    first = planner.pid
    os.kill(first, signal.SIGKILL)
    assert await planner.plan(WORLD, GANGS) == expected()
    assert planner.pid != first
    assert "the planner's process has failed" in caplog.text


async def test_one_that_is_killed_while_it_plans_is_replaced(planner):
    asked = asyncio.create_task(planner.plan(WORLD, GANGS))
    await until(lambda: planner.pid is not None)
    os.kill(planner.pid, signal.SIGKILL)
    assert await asked == expected()


async def test_jobs_that_wait_say_that_it_fails_again_and_again(server, monkeypatch):
    monkeypatch.setattr(planner_process, "_PAUSE", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(planner_process, "_PROGRAM", "gradsieve_operator.no_such_program")
        async with running() as operator:
            submit(server, "digits", 2)
            operator.queue.add(("research", "digits"))
            await until(lambda: admitted(server, "digits") == "PlannerFails")
            said = conditions(server)["Admitted"]["message"]
            assert said.startswith("the planner's process fails again and again: ")
            broken.undo()
            await until(lambda: len(server.all("v1/pods")) == 3)


async def test_a_job_for_which_there_is_no_place_says_so_again_when_it_has_failed(server, monkeypatch):
    async with running() as operator:
        submit(server, "huge", 100)
        operator.queue.add(("research", "huge"))
        await until(lambda: admitted(server, "huge") == "NoPlace")
    monkeypatch.setattr(planner_process, "_PAUSE", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(planner_process, "_PROGRAM", "gradsieve_operator.no_such_program")
        async with running() as operator:
            operator.queue.add(("research", "huge"))
            await until(lambda: admitted(server, "huge") == "PlannerFails")
            broken.undo()
            await until(lambda: admitted(server, "huge") == "NoPlace")


async def test_the_operator_s_end_is_its_end(server):
    async with running() as operator:
        submit(server, "huge", 100)
        operator.queue.add(("research", "huge"))
        await until(lambda: admitted(server, "huge") == "NoPlace")
        assert len(planners()) == 1
    assert not planners()


def test_it_ends_when_the_operator_has_gone_without_a_word():
    answers = io.BytesIO()
    planner_program.serve(io.BytesIO(Asker().question(WORLD, GANGS)), answers)
    assert pickle.loads(answers.getvalue()[LENGTH.size :]) == expected()


def test_it_pauses_three_times_as_long_as_it_works(monkeypatch):
    worked, paused = 0.0, 0.0

    def work() -> float:
        nonlocal worked
        worked += 0.1
        return worked

    def pause(seconds: float) -> None:
        nonlocal paused
        paused += seconds

    monkeypatch.setattr(planner_program.time, "process_time", work)
    monkeypatch.setattr(planner_program.time, "sleep", pause)
    planner_program.plans(WORLD, GANGS)
    assert paused == pytest.approx(3 * 0.1 * len(GANGS))


async def test_what_it_owes_is_told_until_it_has_answered(planner):
    await planner.plan(WORLD, GANGS)
    assert planner.behind() == 0.0
    os.kill(planner.pid, signal.SIGSTOP)
    asked = asyncio.create_task(planner.plan(WORLD, GANGS))
    await until(lambda: planner.behind() >= 0.3)
    os.kill(planner.pid, signal.SIGCONT)
    assert await asked == expected()
    assert planner.behind() == 0.0

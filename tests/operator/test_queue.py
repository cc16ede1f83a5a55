"""The work queue: no key twice at a time, nothing forgotten, one job's trouble is not another's."""

import asyncio
import contextlib

import pytest
from operator_in_memory import until

from gradsieve_operator.cluster import queue as module
from gradsieve_operator.cluster.queue import WorkQueue


@contextlib.asynccontextmanager
async def working(work, workers: int = 3):
    queue = WorkQueue(work, workers)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_what_happens_during_the_work_leads_to_another_look_and_not_to_two_at_once():
    looks, busy, most = 0, 0, 0

    async def work(_key):
        nonlocal looks, busy, most
        looks, busy = looks + 1, busy + 1
        most = max(most, busy)
        await asyncio.sleep(0.05)
        busy -= 1

    async with working(work) as queue:
        queue.add(("a", "b"))
        await asyncio.sleep(0.02)
        for _ in range(5):
            queue.add(("a", "b"))
        await asyncio.sleep(0.5)
    assert (looks, most) == (2, 1)


async def test_a_burst_leads_to_one_look_and_to_none_if_there_was_one_meanwhile(monkeypatch):
    monkeypatch.setattr(module, "_BURST_SECONDS", 0.2)
    looks = []

    async def work(key):
        looks.append(key)

    async with working(work) as queue:
        for _ in range(5):
            queue.soon(("a", "b"))
            await asyncio.sleep(0.01)
        await until(lambda: looks == [("a", "b")])
        for _ in range(5):
            queue.soon(("a", "b"))
        queue.add(("a", "b"))
        await until(lambda: len(looks) == 2)
        await asyncio.sleep(0.5)
    assert len(looks) == 2


async def test_all_are_looked_at_again_and_half_of_the_workers_stay_free_for_news(monkeypatch):
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.01)
    busy, most, done = 0, 0, set()

    async def work(key):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.03)
        busy -= 1
        done.add(key)

    keys = {("a", str(number)) for number in range(40)}
    async with working(work, workers=8) as queue:
        await queue.recheck_all(keys)
        await until(lambda: done == keys)
    assert most <= 4


async def test_all_are_looked_at_again_although_others_keep_all_workers_busy(monkeypatch):
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.01)
    stuck, done = asyncio.Event(), set()

    async def work(key):
        if key[0] == "stuck":
            async with queue.parked():
                await stuck.wait()
        done.add(key)

    keys = {("a", str(number)) for number in range(40)}
    async with working(work, workers=4) as queue:
        for number in range(10):
            queue.add(("stuck", str(number)))
        await asyncio.wait_for(queue.recheck_all(keys), 10)
        await until(lambda: done == keys)
        stuck.set()


async def test_it_looks_again_when_the_time_has_come():
    looks = asyncio.Queue()

    async def work(key):
        looks.put_nowait(key)
        return 0.02

    async with working(work) as queue:
        queue.add(("a", "b"))
        for _ in range(3):
            await asyncio.wait_for(looks.get(), 5)


async def test_a_job_that_fails_is_tried_again_and_does_not_stop_the_others(monkeypatch, caplog):
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    done = asyncio.Event()
    attempts = 0

    async def work(key):
        nonlocal attempts
        if key[1] == "bad":
            attempts += 1
            if attempts < 3:
                raise RuntimeError("no luck")
            done.set()

    async with working(work, workers=1) as queue:
        queue.add(("a", "bad"))
        queue.add(("a", "good"))
        await asyncio.wait_for(done.wait(), 5)
    assert attempts == 3
    assert "a/bad: no luck" in caplog.text


@pytest.mark.parametrize("count", [50])
async def test_every_key_gets_its_turn(count):
    seen = set()

    async def work(key):
        seen.add(key)

    async with working(work) as queue:
        for number in range(count):
            queue.add(("a", str(number)))
        await asyncio.sleep(0.3)
    assert len(seen) == count


async def test_keys_that_are_parked_keep_no_worker_from_others_and_are_not_worked_on_twice():
    answer, parked, most, busy, looks = asyncio.Event(), set(), 0, 0, []

    async def work(key):
        nonlocal most, busy
        busy += 1
        most = max(most, busy)
        looks.append(key)
        if key[1] != "quick":
            busy -= 1
            async with queue.parked():
                parked.add(key)
                await answer.wait()
            busy += 1
        await asyncio.sleep(0)
        busy -= 1

    async with working(work, workers=1) as queue:
        slow = [("a", str(number)) for number in range(50)]
        for key in (*slow, ("a", "quick")):
            queue.add(key)
        await until(lambda: ("a", "quick") in looks)
        assert parked == set(slow)
        queue.add(slow[0])
        queue.add(("b", "quick"))
        await until(lambda: ("b", "quick") in looks)
        assert looks.count(slow[0]) == 1
        answer.set()
        await until(lambda: looks.count(slow[0]) == 2)
        await until(lambda: queue.behind() <= 0.0)
    assert most == 1


async def test_keys_that_were_parked_are_worked_on_no_more_at_a_time_than_there_are_workers():
    busy, most, done = 0, 0, set()

    async def work(key):
        nonlocal busy, most
        async with queue.parked():
            await asyncio.sleep(0)
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.001)
        busy -= 1
        done.add(key)

    queue = WorkQueue(work, 1)
    task = asyncio.create_task(queue.run())
    for number in range(20):
        queue.add(("a", str(number)))
    await until(lambda: len(done) == 20)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert most == 1


async def test_what_has_happened_comes_before_what_is_only_looked_at_again():
    looks = []

    async def work(key):
        looks.append(key[1])

    queue = WorkQueue(work, 1)
    for name in ("old-1", "old-2", "old-3"):
        queue.recheck(("a", name))
    queue.add(("a", "new"))
    queue.add(("a", "old-3"))
    queue.recheck(("a", "new"))
    task = asyncio.create_task(queue.run())
    await until(lambda: len(looks) == 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert looks == ["new", "old-3", "old-1", "old-2"]


async def test_what_somebody_has_asked_for_comes_before_news_also_if_it_was_news_or_busy_already():
    looks = []

    async def work(key):
        looks.append(key[1])
        if looks == ["busy"]:
            for number in range(3):
                queue.add(("a", f"pods-{number}"))
            queue.add(("a", "pods-2"), asked=True)
            queue.add(("a", "pods-2"))
            queue.add(key, asked=True)
            queue.add(key)

    async with working(work, workers=1) as queue:
        queue.add(("a", "busy"))
        await until(lambda: len(looks) == 5)
    assert looks == ["busy", "pods-2", "busy", "pods-0", "pods-1"]


async def test_news_wait_for_no_more_that_was_asked_for_than_comes_in_a_second(monkeypatch):
    now, looks = 1000.0, []
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    async def work(key):
        nonlocal now
        now += 0.25
        looks.append(key[1])
        if len(looks) < 40:
            queue.add(("a", f"asked-{len(looks)}"), asked=True)

    queue = WorkQueue(work, 1)
    queue.add(("a", "pods"))
    queue.add(("a", "asked-0"), asked=True)
    task = asyncio.create_task(queue.run())
    await until(lambda: "pods" in looks)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert looks.index("pods") == module._LATE_SECONDS / 0.25


async def test_a_re_check_waits_for_no_more_news_than_come_in_some_seconds(monkeypatch):
    now, looks = 1000.0, []
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    async def work(key):
        nonlocal now
        now += 1.0
        looks.append(key[1])
        if len(looks) < 40:
            queue.add(("a", f"new-{len(looks)}"))

    queue = WorkQueue(work, 1)
    queue.recheck(("a", "old"))
    queue.add(("a", "new-0"))
    task = asyncio.create_task(queue.run())
    await until(lambda: "old" in looks)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert looks.index("old") == module._OVERDUE_SECONDS


async def test_where_all_re_checks_are_overdue_news_take_turns_with_them(monkeypatch):
    now, looks = 1000.0, []

    def clock():
        nonlocal now
        now += 1e-3
        return now

    monkeypatch.setattr(module.time, "monotonic", clock)

    async def look(key):
        looks.append(key[1])

    queue = WorkQueue(look, workers=1)
    for name in ("old-1", "old-2", "old-3"):
        queue.recheck(("a", name))
    now += module._OVERDUE_SECONDS
    for name in ("new-1", "new-2"):
        queue.add(("a", name))
    task = asyncio.create_task(queue.run())
    await until(lambda: len(looks) == 5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert looks == ["old-1", "new-1", "old-2", "new-2", "old-3"]


async def test_a_re_check_of_what_is_being_worked_on_is_done_by_that():
    looks = []

    async def work(key):
        looks.append(key)
        queue.recheck(key)
        await asyncio.sleep(0)

    async with working(work) as queue:
        queue.add(("a", "b"))
        await until(lambda: looks and queue.behind() <= 0.0)
        await asyncio.sleep(0)
    assert len(looks) == 1


async def test_what_has_failed_is_tried_again_at_once_when_what_it_failed_by_may_be_over(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE", 3600.0)
    looks = []

    async def work(key):
        looks.append(key)
        if len(looks) == 1:
            raise ValueError("no watch")

    async with working(work) as queue:
        queue.add(("a", "b"))
        await until(lambda: len(looks) == 1)
        await asyncio.sleep(0.05)
        queue.hasten()
        await until(lambda: len(looks) == 2)
        queue.hasten()
        await asyncio.sleep(0.05)
    assert looks == [("a", "b")] * 2


async def test_who_is_hastened_again_and_again_in_vain_does_not_wait_the_longer_for_that(caplog):
    looks = []

    async def work(key):
        looks.append(key)
        raise RuntimeError("a watch has broken off")

    async with working(work) as queue:
        queue.add(("a", "b"))
        for number in range(1, 9):
            await until(lambda number=number: len(looks) == number)
            await asyncio.sleep(0.02)
            queue.hasten()
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all(each.endswith("again in 0.5 s") for each in said)


async def test_what_goes_on_in_a_moment_comes_before_what_is_only_looked_at_again():
    order, begun = [], asyncio.Event()

    async def work(key):
        if key[1] == "first":
            await begun.wait()
            return None
        order.append(key[1])
        return 0.2 if order == ["starting"] else None

    async with working(work, workers=1) as queue:
        queue.add(("a", "starting"))
        await until(lambda: order == ["starting"])
        queue.add(("a", "first"))
        await asyncio.sleep(0.3)
        for number in range(5):
            queue.recheck(("a", f"seen-{number}"))
        queue.add(("a", "new"))
        begun.set()
        await until(lambda: len(order) == 8)
    assert order == ["starting", "new", "starting", *(f"seen-{number}" for number in range(5))]


async def test_who_asks_again_and_again_at_once_keeps_no_re_check_away(monkeypatch):
    monkeypatch.setattr(module, "_OVERDUE_SECONDS", 0.1)
    done = asyncio.Event()

    async def work(key):
        await asyncio.sleep(0.01)
        if key[1] == "seen":
            done.set()
            return None
        return 0.0

    async with working(work, workers=1) as queue:
        for number in range(20):
            queue.add(("busy", str(number)))
        await asyncio.sleep(0.3)
        queue.recheck(("a", "seen"))
        await asyncio.wait_for(done.wait(), 5)

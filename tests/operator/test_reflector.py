"""A copy of a collection of the API server: complete, up to date, and of what is of interest only."""

import asyncio
import contextlib
import time

import pytest

from gradsieve_operator.cluster.reflector import Reflector
from gradsieve_operator.errors import ApiError


def item(name: str, version: str, **labels: str) -> dict:
    return {"metadata": {"namespace": "a", "name": name, "resourceVersion": version, "labels": labels}}


TOO_OLD = object()


class Server:
    """Lists and watches as they are prepared: each an error or what it yields; then it hangs."""

    def __init__(self, lists: list, watches: list) -> None:
        self.lists, self.watches, self.asked = lists, watches, []

    async def pages(self, _where, **_query):
        for page in self._next(self.lists):
            yield page

    async def watch(self, _where, version, *, opened, **_query):
        self.asked.append(version)
        if not self.watches:
            opened()
            await asyncio.Event().wait()
        for event in self._next(self.watches):
            if event is TOO_OLD:
                # As the API server does: it takes the watch first.
                opened()
                await asyncio.sleep(0.02)
                raise ApiError(410, "Expired", "too old")
            yield event

    @staticmethod
    def _next(prepared: list) -> list:
        found = prepared.pop(0)
        if isinstance(found, ApiError):
            raise found
        return found


def page(version: str, *items: dict) -> dict:
    return {"metadata": {"resourceVersion": version}, "items": list(items)}


def event(kind: str, found: dict) -> dict:
    return {"type": kind, "object": found}


def kept(found):
    return None if found["metadata"]["labels"].get("dull") else found["metadata"]["resourceVersion"]


@contextlib.asynccontextmanager
async def running(server: Server, monkeypatch):
    monkeypatch.setattr("gradsieve_operator.cluster.reflector._FIRST_PAUSE", 0.01)
    changes: list[int] = []
    reflector = Reflector(server, "/api/v1/things", kept, lambda: changes.append(1))
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(state) -> None:
    for _ in range(1000):
        if state():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not reached in time")


async def test_pages_make_one_list_without_what_is_of_no_interest(monkeypatch):
    server = Server([[page("7", item("x", "1"), item("y", "2", dull="yes")), page("7", item("z", "3"))]], [])
    async with running(server, monkeypatch) as (reflector, changes):
        await asyncio.wait_for(reflector.synced.wait(), 10)
        assert reflector.kept == {"a/x": "1", "a/z": "3"}
        assert len(changes) == 1
        await until(lambda: server.asked == ["7"])


async def test_events_keep_it_up_to_date_and_a_watch_that_ends_goes_on_where_it_was(monkeypatch):
    told = [
        event("ADDED", item("y", "8")),
        event("MODIFIED", item("x", "9", dull="yes")),
        event("DELETED", item("z", "10")),
        event("BOOKMARK", item("", "12")),
    ]
    server = Server([[page("7", item("x", "1"), item("z", "3"))]], [told, []])
    async with running(server, monkeypatch) as (reflector, changes):
        await until(lambda: server.asked == ["7", "12", "12"])
        assert reflector.kept == {"a/y": "8"}
        assert len(changes) == 4, "a bookmark changes nothing"


async def test_a_watch_that_has_fallen_behind_lists_again_and_forgets_what_is_gone(monkeypatch):
    gone = ApiError(410, "Expired", "too old")
    server = Server([[page("7", item("x", "1"))], [page("20", item("y", "19"))]], [gone])
    async with running(server, monkeypatch) as (reflector, _):
        await until(lambda: server.asked == ["7", "20"])
        assert reflector.kept == {"a/y": "19"}


async def test_what_is_kept_stays_while_the_server_is_away_and_its_age_grows(monkeypatch, caplog):
    away = ApiError(0, "Unreachable", "connection refused")
    server = Server([away, [page("7", item("x", "1"))]], [away, away, []])
    async with running(server, monkeypatch) as (reflector, _):
        await until(lambda: len(server.asked) == 4)
        assert reflector.kept == {"a/x": "1"}
        heard = time.monotonic() - reflector.heard
        await asyncio.sleep(0.1)
        assert time.monotonic() - reflector.heard >= heard + 0.1
    assert caplog.text.count("connection refused") == 3


async def test_a_watch_that_is_taken_and_then_found_to_be_too_old_is_no_sign_that_all_is_known(monkeypatch):
    away = ApiError(0, "Unreachable", "connection refused")
    server = Server([[page("7", item("x", "1"))], [page("20", item("y", "19"))]], [away, [TOO_OLD]])
    monkeypatch.setattr("gradsieve_operator.cluster.reflector._FIRST_PAUSE", 0.01)
    known: list[dict] = []
    reflector = Reflector(server, "/api/v1/things", kept, recovered=lambda: known.append({**reflector.kept}))
    task = asyncio.create_task(reflector.run())
    try:
        await until(lambda: server.asked == ["7", "7", "20"])
    finally:
        task.cancel()
    assert known == [{"a/x": "1"}, {"a/y": "19"}], "the first list, and the one after what was missed"


async def test_a_watch_that_goes_on_has_caught_up_a_moment_later(monkeypatch):
    away = ApiError(0, "Unreachable", "connection refused")
    server = Server([[page("7", item("x", "1"))]], [away])
    async with running(server, monkeypatch) as (reflector, _):
        await until(lambda: server.asked == ["7", "7"])
        assert reflector.broken
        await until(lambda: not reflector.broken)


@pytest.mark.parametrize("kind", ["ADDED", "BOOKMARK"])
async def test_any_word_of_the_server_counts_as_life(monkeypatch, kind):
    server = Server([[page("7")]], [[event(kind, item("x", "8"))]])
    async with running(server, monkeypatch) as (reflector, _):
        before = reflector.heard
        await until(lambda: len(server.asked) == 2)
        assert reflector.heard > before


FILLED_IN = [page("7", item("x", "1"))], [page("9", item("x", "1", filled="in"))]


async def labels_until(server: Server, enough) -> dict:
    """Return the labels that are kept of a kind whose schema may change, once ``enough`` holds."""
    reflector = Reflector(server, "/api/v1/things", lambda raw: raw["metadata"]["labels"], relist=True)
    task = asyncio.create_task(reflector.run())
    try:
        await until(lambda: enough(reflector))
    finally:
        task.cancel()
    return reflector.kept


async def test_a_watch_that_ends_in_time_goes_on_where_it_was_without_a_list(monkeypatch):
    monkeypatch.setattr("gradsieve_operator.cluster.reflector.WATCH_SECONDS", 0)
    server = Server([*FILLED_IN], [[event("BOOKMARK", item("y", "8"))]])
    assert await labels_until(server, lambda _: len(server.asked) == 2) == {"a/x": {}}
    assert server.asked == ["7", "8"]


async def test_once_in_an_hour_it_is_listed_all_the_same(monkeypatch):
    monkeypatch.setattr("gradsieve_operator.cluster.reflector.WATCH_SECONDS", 0)
    monkeypatch.setattr("gradsieve_operator.cluster.reflector._LISTED_SECONDS", 0)
    server = Server([*FILLED_IN], [[]])
    assert await labels_until(server, lambda _: len(server.asked) == 2) == {"a/x": {"filled": "in"}}
    assert server.asked == ["7", "9"]


async def test_what_a_new_schema_fills_in_is_seen_once_the_watch_has_ended_early(monkeypatch):
    monkeypatch.setattr("gradsieve_operator.cluster.reflector._FIRST_PAUSE", 0.01)
    server = Server([[page("7", item("x", "1"))], [page("7", item("x", "1", filled="in"))]], [[]])
    told: list[dict] = []
    reflector = Reflector(
        server, "/api/v1/things", lambda raw: raw["metadata"]["labels"], told=told.append, relist=True
    )
    task = asyncio.create_task(reflector.run())
    try:
        await until(lambda: told == [{"filled": "in"}])
    finally:
        task.cancel()
    assert reflector.kept == {"a/x": {"filled": "in"}}

"""A child counts as there while it is as the operator applied it; what others do to it is noticed."""

import pytest

from gradsieve_operator.cluster.children import Children

JOB, UID = ("research", "digits"), "uid-of-digits"
POLICY = ("NetworkPolicy", "digits")


def raw(version: int, owner: str = UID) -> dict:
    about = {"namespace": "research", "name": "digits", "uid": "u1", "resourceVersion": str(version)}
    return {"kind": "NetworkPolicy", "metadata": {**about, "ownerReferences": [{"uid": owner}]}}


class Watched:
    """Children, a clock, and the events of NetworkPolicies."""

    def __init__(self) -> None:
        self.now, self.told = 100.0, []
        self.children = Children(None, (None,), self.told.append, lambda: None, lambda: self.now)
        (self.reflector,) = [each for each in self.children.reflectors() if "networkp" in each._where]

    def event(self, kind: str, item: dict) -> None:
        self.reflector._take({"type": kind, "object": item})

    @property
    def stands(self) -> bool:
        return POLICY in self.children.standing(JOB, UID)


@pytest.fixture
def it() -> Watched:
    return Watched()


def test_what_another_process_has_made_is_applied_once(it):
    it.event("ADDED", raw(5))
    assert not it.stands
    assert it.children.uid("NetworkPolicy", JOB, UID) == "u1"
    it.children.written(raw(5))
    assert it.stands


def test_its_own_event_is_no_news(it):
    it.children.written(raw(5))
    it.event("ADDED", raw(5))
    assert it.stands
    assert it.told == []


def test_what_is_deleted_is_missing_at_once(it):
    it.children.written(raw(5))
    it.event("DELETED", raw(6))
    assert not it.stands
    assert it.told == [JOB]


def test_what_is_changed_again_and_again_is_put_right_every_ten_seconds(it):
    it.children.written(raw(5))
    it.event("MODIFIED", raw(6))
    assert it.told == [JOB]
    assert it.stands
    it.now += 10.0
    assert not it.stands
    it.children.written(raw(7))
    assert it.stands


def test_what_belongs_to_somebody_else_is_not_the_job_s(it):
    it.event("ADDED", raw(5, owner="another"))
    assert not it.stands
    assert it.children.uid("NetworkPolicy", JOB, UID) is None

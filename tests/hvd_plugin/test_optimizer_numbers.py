"""An optimizer's number is the same on all ranks, however many optimizers each of them has seen."""

import json

import pytest

from gradsieve_hvd.engine import settings_check
from gradsieve_hvd.engine.settings_check import compare_settings

SETTINGS = {"op": "Average"}


class Told:
    """What all ranks told; this rank comes first."""

    def __init__(self, content, numbers):
        self._all = [content, *(json.dumps({"number": n, "settings": SETTINGS}).encode() for n in numbers)]

    def wait(self):
        return self._all


class Others:
    """The numbers that the other ranks say."""

    def __init__(self):
        self.numbers: list[int] = []

    def tell(self, content, _name):
        return Told(content, self.numbers)


OTHERS = Others()


@pytest.fixture
def others(monkeypatch):
    monkeypatch.setattr(settings_check._Numbers, "next", 0)
    OTHERS.numbers.clear()
    return OTHERS.numbers


def number(given=None):
    return compare_settings(SETTINGS, given, OTHERS, 1.0)


def test_optimizers_are_counted(others):
    others[:] = [0]
    assert number() == 0
    others[:] = [1]
    assert number() == 1


def test_a_newcomer_takes_the_number_that_survivors_have_come_to(others):
    others[:] = [3]
    assert number() == 3
    others[:] = [4]
    assert number() == 4


def test_an_optimizer_that_goes_on_keeps_its_number_beside_a_newcomer_s(others):
    others[:] = [0]
    assert number() == 0
    others[:] = [0]
    assert number(0) == 0
    others[:] = [1]
    assert number() == 1

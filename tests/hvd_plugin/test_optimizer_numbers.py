"""An optimizer's number is the same on all ranks, however many optimizers each of them has seen."""

import json

import pytest

from gradsieve_hvd import settings_check
from gradsieve_hvd.settings_check import compare_settings

SETTINGS = {"op": "Average"}


@pytest.fixture
def others(monkeypatch):
    """The numbers that the other ranks say; what this rank says comes first."""
    numbers: list[int] = []

    def gather(content, *_):
        said = [{"number": number, "settings": SETTINGS} for number in numbers]
        return [content, *(json.dumps(each).encode() for each in said)]

    monkeypatch.setattr(settings_check, "gather_bytes", gather)
    monkeypatch.setattr(settings_check._Numbers, "next", 0)
    return numbers


def number(given=None):
    return compare_settings(SETTINGS, given, None, 1.0)


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

"""A line that looks like the coordinator's own is the coordinator's own."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.options import IndentedLines

FORMATTER = IndentedLines("gradsieve coordinator: %(message)s")


def line(message: str) -> str:
    return FORMATTER.format(logging.LogRecord("gradsieve", logging.INFO, "", 0, message, None, None))


@given(st.text())
def test_whatever_is_logged_begins_one_line_and_prints(message):
    first, *others = line(message).split("\n")
    assert first.startswith("gradsieve coordinator: ")
    assert all(other.startswith("    ") for other in others)
    assert not any(each < " " or "\x7f" <= each <= "\x9f" for each in line(message) if each not in "\n\t")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        pytest.param("all ranks run", "all ranks run", id="plain"),
        pytest.param("no\ngradsieve coordinator: yes", "no\n    gradsieve coordinator: yes", id="a line"),
        pytest.param("\x1b[2Jgone", "\\x1b[2Jgone", id="an escape"),
    ],
)
def test_what_others_said_is_shown_as_theirs(said, shown):
    assert line(said) == f"gradsieve coordinator: {shown}"

"""How the output of several ranks becomes one stream."""

import os
import time
from contextlib import ExitStack, contextmanager

import pytest

from gradsieve_hvd.launcher import streams
from gradsieve_hvd.launcher.output import OutputFilter
from gradsieve_hvd.launcher.streams import HALF_LINE_SECONDS, Sink, Source, transfer


@contextmanager
def two_ranks():
    """What two ranks write to, unbuffered, and a call that returns what the user sees next."""
    read, writing = os.pipe()
    pipes = [os.pipe() for _ in range(2)]
    with ExitStack() as files:
        first, second = (files.enter_context(os.fdopen(end, "wb", buffering=0)) for _, end in pipes)
        user = files.enter_context(os.fdopen(read, "rb", buffering=0))
        files.callback(os.close, writing)
        os.set_blocking(read, False)
        sink = Sink(writing)
        sources = [Source(end, sink, OutputFilter(), whole_lines=True) for end, _ in pipes]

        def shown(patience=0.0):
            until = time.monotonic() + patience
            transfer(sources, {}, 0.0)
            while sink.waiting or (not (seen := user.read()) and time.monotonic() < until):
                transfer(sources, {}, 0.01)
            return seen or b""

        yield first, second, shown
        first.close()
        second.close()
        while not all(source.closed for source in sources):
            shown()


def test_a_line_printed_in_pieces_is_not_torn_by_another_ranks(monkeypatch):
    monkeypatch.setattr(streams, "HALF_LINE_SECONDS", 600.0)
    with two_ranks() as (first, second, shown):
        first.write(b"1")
        assert shown() == b""
        second.write(b"0 0 0 2\n")
        assert shown() == b"0 0 0 2\n"
        first.write(b" 1 1 2\nnext")
        assert shown() == b"1 1 1 2\n"


@pytest.mark.parametrize("text", [b"loss: ", b" 50%|###"])
def test_half_a_line_is_shown_when_its_rest_does_not_come(text):
    with two_ranks() as (first, _, shown):
        first.write(text)
        assert shown(10.0) == text
        first.write(b" 2.5\n")
        assert shown() == b" 2.5\n"


def test_a_bar_that_is_drawn_again_is_shown_at_once():
    with two_ranks() as (first, _, shown):
        first.write(b"10%\r20%\r")
        assert shown() == b"10%\r20%\r"


def test_half_a_line_that_grows_waits_no_longer_for_that():
    with two_ranks() as (first, _, shown):
        until = time.monotonic() + 10.0
        while not (seen := shown()) and time.monotonic() < until:
            first.write(b".")
            time.sleep(HALF_LINE_SECONDS / 10)
        assert set(seen) == set(b".")


def test_the_last_half_line_is_shown_when_the_rank_ends():
    with two_ranks() as (first, _, shown):
        first.write(b"no newline")
        shown()
        first.close()
        assert shown() == b"no newline"

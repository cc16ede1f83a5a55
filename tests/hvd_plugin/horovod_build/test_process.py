"""A long step is logged, bounded in time, and explained when it fails."""

import os
import sys
import time
from pathlib import Path

import pytest

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build.process import log_excerpt, run_logged


def run(tmp_path, program, seconds=30.0, **watchers):
    run_logged(
        [sys.executable, "-u", "-c", program], what="the step", folder=tmp_path, environ=os.environ,
        log=tmp_path / "log", deadline=time.monotonic() + seconds, **watchers,
    )  # fmt: skip


def test_every_line_goes_to_the_log_and_to_the_watcher(tmp_path):
    lines: list[str] = []
    run(tmp_path, "import sys; print('one'); print('two', file=sys.stderr)", on_line=lines.append)
    assert lines == ["one", "two"]
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_failure_shows_the_status_the_first_errors_and_the_end_of_the_log(tmp_path):
    program = (
        "print('a.cc:1: error: expected ;'); [print('make noise', i) for i in range(99)]; raise SystemExit(3)"
    )
    with pytest.raises(BuildError) as caught:
        run(tmp_path, program)
    message = str(caught.value)
    assert message.startswith(
        f"the step failed (exit status 3); from {tmp_path}/log:\na.cc:1: error: expected ;\n..."
    )
    assert message.endswith("make noise 98")
    assert "make noise 50" not in message


def test_a_step_past_its_deadline_is_ended_with_all_that_it_started(tmp_path):
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    lines: list[str] = []
    with pytest.raises(BuildError, match="the step ran past its time limit"):
        run(tmp_path, program, seconds=3.0, on_line=lines.append)
    deadline = time.monotonic() + 10
    while is_running(int(lines[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(lines[0]))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupt_ends_the_step_too(tmp_path):
    def interrupt() -> None:
        raise KeyboardInterrupt

    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "import time; time.sleep(300)", on_line=lines.append, on_tick=interrupt)


def test_a_short_log_is_shown_as_it_is(tmp_path):
    (tmp_path / "log").write_text("error: here\nlast\n")
    assert log_excerpt(tmp_path / "log") == "error: here\nlast"

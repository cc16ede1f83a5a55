"""Run one long command: every line to a log and to a watcher, with a deadline, and no process left behind."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gradsieve.errors import BuildError

_ERROR_LINE = re.compile(r"(?:fatal error|error|Error|ERROR):|CMake Error")
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0


def log_excerpt(log: Path, errors: int = 6, tail: int = 15) -> str:
    """Return what explains a failure: the first lines of `log` that name an error, then its last lines.

    The compiler's message is rarely at the end: make and pip add their own lines after it.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    head = [line for line in lines[:-tail] if _ERROR_LINE.search(line)][:errors]
    return "\n".join(line[:300] for line in [*head, *(["..."] if head else []), *lines[-tail:]])


def end_group(process: "subprocess.Popen[str]") -> None:
    """End the process and all that it started: politely first, then for certain."""
    for number, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)


def _follow(process: "subprocess.Popen[str]", log: Path, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as output, log.open("a", encoding="utf-8") as file:
        for line in output:
            file.write(line)
            on_line(line.rstrip("\n"))


def run_logged(
    command: Sequence[str],
    *,
    what: str,
    folder: Path,
    environ: Mapping[str, str],
    log: Path,
    deadline: float,
    on_line: Callable[[str], None] = lambda _line: None,
    on_tick: Callable[[], None] = lambda: None,
) -> None:
    """Run `command` in `folder` and append its output to `log`.

    Args:
        command: the program and its arguments.
        what: the step's name for error messages, as "compiling Horovod".
        folder: working directory.
        environ: the complete environment.
        log: file that both output streams are appended to.
        deadline: `time.monotonic()` value at which the step is given up.
        on_line: called with every line, from a second thread.
        on_tick: called about twice a second from the calling thread.

    Raises:
        BuildError: the command fails or runs past the deadline; the message ends with an excerpt of the log.
    """
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    reader = threading.Thread(target=_follow, args=(process, log, on_line), daemon=True)
    reader.start()
    try:
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_POLL_SECONDS)
            on_tick()
        in_time = process.poll() is not None
    finally:
        if process.poll() is None:
            end_group(process)
        reader.join(timeout=_GRACE_SECONDS)
    if not in_time:
        raise BuildError(f"{what} ran past its time limit and was ended; from {log}:\n{log_excerpt(log)}")
    if process.returncode != 0:
        raise BuildError(f"{what} failed (exit status {process.returncode}); from {log}:\n{log_excerpt(log)}")

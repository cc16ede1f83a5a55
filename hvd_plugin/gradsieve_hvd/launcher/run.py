"""The launcher's side of a job: start the supervisor, pass on signals, return the outcome."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher import enter
from gradsieve_hvd.launcher.job import Job, Outcome

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWING = (signal.SIGQUIT, signal.SIGUSR1)


def run(job: Job) -> Outcome:
    r"""Run ``job`` to its end; its ranks write to this process's standard output and error.

    In the main thread, signals are passed on: SIGINT, SIGTERM and SIGHUP end the job (a second one kills it)
    and give it the status 128 + signal; SIGQUIT (Ctrl-\ in a terminal) and SIGUSR1 show all ranks' stacks.
    However this process ends, no process of the job is left.

    Raises:
        LaunchError: the job could not be started.
    """
    if sys.platform != "linux":
        raise LaunchError(f"the launcher needs Linux (child subreapers, /proc), this is {sys.platform}")
    control, theirs = socket.socketpair()
    with control:
        with theirs, _held_back(signal.SIGTERM, signal.SIGUSR1):
            supervisor = _start_supervisor(job, theirs.fileno())
        with _passing_signals_to(supervisor) as ending:
            answer = b"".join(iter(lambda: control.recv(1 << 16), b""))
            supervisor.wait()
    if not answer and not ending:
        raise LaunchError(f"the job's supervisor ended unexpectedly with status {supervisor.returncode}")
    outcome = Outcome.from_json(answer.decode()) if answer else Outcome(0)
    if ending:
        return replace(outcome, status=128 + ending[0], failure="")
    if outcome.error:
        raise LaunchError(outcome.error)
    return outcome


def _start_supervisor(job: Job, control: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            # -P: nothing that lies beside the script or in the working directory is to be imported.
            [sys.executable, "-P", enter.__file__, job.to_json(), str(control)],
            # A background session may not read from the terminal.
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            pass_fds=(control,),
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"cannot start {sys.executable}: {error.strerror}") from error


@contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Children started meanwhile keep these signals until they are ready for them (they unblock them)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _passing_signals_to(supervisor: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Yields the signals that end the job; none outside the main thread, where Python handles none."""
    ending: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in _ENDING:
            ending.append(number)
        supervisor.send_signal(signal.SIGTERM if number in _ENDING else signal.SIGUSR1)

    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.signal(number, pass_on) for number in (*_ENDING, *_SHOWING)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The process between the launcher and the ranks: it holds the network and lets nothing outlive it.

It is a child subreaper in a session of its own: whatever a rank starts remains its descendant, even as a
daemon, and a terminal's Ctrl-C reaches the launcher alone. The launcher holds the other end of ``control``:
when that closes, however the launcher ended, the job is over.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from gradsieve.errors import GradsieveError, LaunchError
from gradsieve_hvd.launcher import linux
from gradsieve_hvd.launcher.job import TIMED_OUT, Job, Outcome
from gradsieve_hvd.launcher.processes import kill_descendants, reap
from gradsieve_hvd.launcher.ranks import Ranks
from gradsieve_hvd.launcher.stacks import show_stacks
from gradsieve_hvd.launcher.start import start
from gradsieve_hvd.launcher.stragglers import full_quota, slowness
from gradsieve_hvd.launcher.streams import Sink, transfer
from gradsieve_hvd.launcher.throttle import Throttle

_GRACE_SECONDS = 5.0
"""Time between asking the ranks to end and killing them."""

_LINK_NEEDS = (
    "an emulated link needs network namespaces: run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN "
    "(in a container: --privileged), or allow user namespaces (sysctl user.max_user_namespaces > 0, "
    "kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1)"
)


class Supervisor:
    """Passes on the output of running ranks, and ends them when it is time.

    Args:
        ranks: running.
        control: becomes readable when the launcher has gone.
        wakeup: numbers of the signals that this process gets arrive here.
        stacks: folder where interpreters leave their stacks.
        err: takes what is to be said beside the ranks' own output.
    """

    def __init__(
        self, ranks: Ranks, control: socket.socket, wakeup: socket.socket, stacks: Path, err: Sink
    ) -> None:
        self._ranks = ranks
        self._others: dict[int, Callable[[], None]] = {
            wakeup.fileno(): lambda: self._on_signals(wakeup.recv(64)),
            control.fileno(): lambda: self._on_launcher_gone(control),
        }
        self._stacks = stacks
        self._err = err
        self._time_out_at = float("inf")
        self._kill_at = float("inf")
        self._forced_status: int | None = None
        self._launcher_gone = False

    def watch(self, timeout: float | None) -> int:
        """Wait for all ranks to end, and end them after ``timeout`` seconds; returns the exit status."""
        if timeout is not None:
            self._time_out_at = time.monotonic() + timeout
        while True:
            self._ranks.ended(reap())
            if self._ranks.status:
                self._kill_after_grace()
            if not self._ranks.running or time.monotonic() >= self._kill_at:
                break
            if time.monotonic() >= self._time_out_at:
                self._time_out(timeout)
            if any(source.sink.broken for source in self._ranks.sources):
                self._stop(128 + signal.SIGPIPE)
            # A second at most: a wake-up that is lost for whatever reason must not hang the job.
            wait = min(self._time_out_at, self._kill_at, time.monotonic() + 1.0) - time.monotonic()
            transfer(self._ranks.sources, self._others, wait)
        return self._ranks.status if self._forced_status is None else self._forced_status

    def drain(self) -> None:
        """Pass on what is left of the output, when no process is left that could add to it."""
        while not self._launcher_gone and any(s.sink.waiting or not s.closed for s in self._ranks.sources):
            transfer(self._ranks.sources, self._others, None)

    @property
    def forced(self) -> bool:
        """Whether the ranks were told to end, so that their own status says nothing."""
        return self._forced_status is not None

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGUSR1 in numbers:
            self._err.put(show_stacks(self._stacks).encode())
        if signal.SIGTERM in numbers:
            if self.forced:
                self._kill_at = time.monotonic()
            self._stop(128 + signal.SIGTERM)

    def _on_launcher_gone(self, control: socket.socket) -> None:
        del self._others[control.fileno()]
        self._launcher_gone = True
        self._stop(128 + signal.SIGHUP)

    def _time_out(self, timeout: float | None) -> None:
        self._time_out_at = float("inf")
        self._err.put(f"gradsieve run: no end after {timeout:g} seconds; stacks of all ranks:\n".encode())
        self._err.put(show_stacks(self._stacks).encode())
        self._stop(TIMED_OUT)

    def _stop(self, status: int) -> None:
        if not self.forced:
            self._forced_status = status
            self._kill_after_grace()
            self._ranks.terminate()

    def _kill_after_grace(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + _GRACE_SECONDS)


def _wakeups() -> socket.socket:
    receive, send = socket.socketpair()
    send.setblocking(False)
    signal.set_wakeup_fd(send.detach(), warn_on_full_buffer=False)
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    # The launcher blocked them until now, so that none could hit a supervisor that is not ready.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return receive


def _throttle(job: Job) -> Throttle:
    full = full_quota(job.slow, job.ranks, len(os.sched_getaffinity(0)))
    return Throttle(job.ranks, lambda rank, seconds: full / slowness(job.slow, rank, job.ranks, seconds))


def supervise(job: Job, control: socket.socket, folder: Path) -> Outcome:
    """Run ``job`` from start to end, with nothing left over; ``folder`` is its own.

    Raises:
        LaunchError: it could not be started.
    """
    stacks = folder / "stacks"
    stacks.mkdir()
    wakeup = _wakeups()
    linux.become_subreaper()
    out, err = Sink(1), Sink(2)
    try:
        ranks, link = start(job, folder, stacks, out, err)
        supervisor = Supervisor(ranks, control, wakeup, stacks, err)
        began = time.monotonic()
        with ExitStack() as throttled:
            if job.slow:
                throttled.callback(_throttle(job).close)
            status = supervisor.watch(job.timeout)
        seconds = time.monotonic() - began
        sent = [] if link is None else link.bytes_sent()
    finally:
        kill_descendants()
    supervisor.drain()
    return Outcome(status, "" if supervisor.forced else ranks.failure(), seconds, sent)


def main(job_text: str, control_descriptor: str, refused: str) -> None:
    """Run the job in ``job_text`` and write its outcome to the control socket.

    Args:
        job_text: the job, as JSON.
        control_descriptor: number of the control socket's descriptor.
        refused: why the namespaces that an emulated link needs could not be entered; empty if they were.
    """
    control = socket.socket(fileno=int(control_descriptor))
    with tempfile.TemporaryDirectory(prefix="gradsieve-", ignore_cleanup_errors=True) as folder:
        try:
            if refused:
                raise LaunchError(f"{_LINK_NEEDS} ({refused})")
            outcome = supervise(Job.from_json(job_text), control, Path(folder))
        except GradsieveError as error:
            outcome = Outcome(status=2, error=str(error))
    # If the launcher has gone, nobody wants to know.
    with suppress(OSError):
        control.sendall(outcome.to_json().encode())

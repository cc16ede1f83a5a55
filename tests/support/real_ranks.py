"""Tests that run on real Horovod ranks.

A test decorated with `on_ranks` is executed by every rank of the real jobs in `JOBS`; pytest reports what
became of it. Starting a job costs seconds (each rank imports torch), so all such tests of a folder share
these jobs: this file, run as a program, is what their ranks execute. A test that would leave Horovod unusable
starts a job of its own with `run_alone`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

JOB_SECONDS = 240.0
GLOO = "gloo"
JOBS = ("2", "4", GLOO)
"""Numbers of MPI ranks, and 2 ranks under Horovod's Gloo controller."""


def ranks_of(job: str) -> int:
    return 2 if job == GLOO else int(job)


def on_ranks(scenario: Callable[[Any], None]) -> Callable[..., None]:
    """Run the decorated ``scenario(hvd)`` on every rank of each of the jobs."""

    @pytest.mark.parametrize("job", JOBS)
    @pytest.mark.timeout(JOB_SECONDS + 60)
    def test(job: str, outcomes: Callable[[str], Outcomes]) -> None:
        outcomes(job).check(f"{Path(scenario.__code__.co_filename).stem}.{scenario.__name__}")

    test.__name__ = scenario.__name__
    test.scenario = scenario  # type: ignore[attr-defined]
    return test


class Outcomes:
    """What every rank of one job wrote about every test."""

    def __init__(self, folder: Path, ranks: int, status: int) -> None:
        self._status = status
        self._ranks = [_read(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]

    def check(self, name: str) -> None:
        """Fail with the ranks' tracebacks unless the test passed on all of them."""
        problems = []
        for rank, outcomes in enumerate(self._ranks):
            outcome = outcomes.get(name, "was not reached")
            if outcome != "passed":
                problems.append(f"rank {rank}: {outcome}")
        if problems:
            pytest.fail(f"(the job ended with status {self._status})\n" + "\n".join(problems), pytrace=False)


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())


def run_job(test_folder: Path, job: str, results: Path) -> Outcomes:
    """Start a job that executes all tests of a folder."""
    from gradsieve_hvd.launcher.job import Job
    from gradsieve_hvd.launcher.run import run

    ranks = ranks_of(job)
    command = (sys.executable, __file__, str(test_folder), str(results))
    outcome = run(Job(command, ranks, gloo=job == GLOO, timeout=JOB_SECONDS))
    return Outcomes(results, ranks, outcome.status)


def shared_jobs(folder: Path) -> Any:
    """The fixture ``outcomes`` of a folder's tests: what became of them in a job, which runs once."""

    @pytest.fixture(scope="session")
    def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcomes]:
        finished: dict[str, Outcomes] = {}

        def of(job: str) -> Outcomes:
            if job not in finished:
                finished[job] = run_job(folder, job, tmp_path_factory.mktemp(f"job-{job}"))
            return finished[job]

        return of

    return outcomes


def run_alone(
    program: str, ranks: int, folder: Path, *, gloo: bool = False, timeout: float = 90.0
) -> tuple[int, str]:
    """Run a program of its own on real ranks; return exit status and everything it printed."""
    import subprocess

    script = folder / "program.py"
    script.write_text(program)
    command = [
        sys.executable,
        "-m",
        "gradsieve_hvd.cli",
        "run",
        "-np",
        str(ranks),
        *(["--gloo"] if gloo else []),
        "--timeout",
        str(timeout),
        "--",
        sys.executable,
        str(script),
    ]
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout + 30
    )
    return finished.returncode, finished.stdout


def _scenarios(folder: Path) -> Iterator[tuple[str, Callable[[Any], None]]]:
    for path in sorted(folder.glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        for name, test in list(vars(module).items()):
            if hasattr(test, "scenario"):
                yield f"{path.stem}.{name}", test.scenario


def _main(folder: Path, results: Path) -> None:
    import horovod.torch as hvd
    import torch

    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init()
    torch.set_num_threads(1)
    with (results / f"rank-{hvd.rank()}.jsonl").open("w") as file:
        for name, scenario in _scenarios(folder):
            torch.manual_seed(0)
            try:
                scenario(hvd)
                outcome = "passed"
            # Whatever it was, it is reported and the next test runs. What pytest.raises() raises where
            # nothing was raised is not an Exception.
            except (Exception, pytest.fail.Exception):  # noqa: BLE001
                outcome = traceback.format_exc()
            file.write(json.dumps([name, outcome]) + "\n")
            file.flush()
            hvd.barrier()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Tests that run on real Horovod ranks.

A test decorated with `on_ranks` is executed by every rank of the real jobs in `JOBS`; pytest reports what
became of it. Starting a job costs seconds (each rank imports torch), so all such tests that pytest was asked
for share these jobs, whatever their folder: this file, run as a program, is what their ranks execute. A test
that would leave Horovod unusable starts a job of its own with `run_alone`.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

JOB_SECONDS = 900.0
"""For all of a job's tests together, of which each has SCENARIO_SECONDS: what hangs is found by these."""

SCENARIO_SECONDS = 120.0
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
        outcomes(job).check(_name(Path(scenario.__code__.co_filename), scenario.__name__))

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


def _name(file: Path, test: str) -> str:
    return f"{file.parent.name}/{file.stem}.{test}"


def run_job(job: str, files: Sequence[Path], wanted: Sequence[str], results: Path) -> Outcomes:
    """Start a job that executes the tests of these names in these files."""
    from gradsieve_hvd.launcher.job import Job
    from gradsieve_hvd.launcher.run import run

    ranks = ranks_of(job)
    (results / "asked.json").write_text(json.dumps({"files": list(map(str, files)), "tests": [*wanted]}))
    command = (sys.executable, __file__, str(results))
    # Where ranks share cores the launcher has Horovod look for work every 20 ms only; these tests take
    # thousands of steps of next to no work.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOROVOD_CYCLE_TIME", "1")
        outcome = run(Job(command, ranks, gloo=job == GLOO, timeout=JOB_SECONDS))
    return Outcomes(results, ranks, outcome.status)


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcomes]:
    """What became of all tests on real ranks in a job, which runs once."""
    finished: dict[str, Outcomes] = {}

    def of(job: str) -> Outcomes:
        if job not in finished:
            tests = [item for item in request.session.items if _is_asked_of(item, job)]
            files = {item.path for item in tests}
            wanted = [_name(item.path, item.originalname) for item in tests]
            finished[job] = run_job(job, sorted(files), wanted, tmp_path_factory.mktemp(f"job-{job}"))
        return finished[job]

    return of


def _is_asked_of(item: Any, job: str) -> bool:
    return hasattr(getattr(item, "function", None), "scenario") and item.callspec.params["job"] == job


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


def _scenarios(files: Sequence[str]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    for path in map(Path, files):
        module_name = f"{path.parent.name}_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
        for name, test in list(vars(module).items()):
            if hasattr(test, "scenario"):
                yield _name(path, name), test.scenario


def _main(results: Path) -> None:
    import horovod.torch as hvd
    import torch

    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init()
    torch.set_num_threads(1)
    asked = json.loads((results / "asked.json").read_text())
    scenarios = list(_scenarios(asked["files"]))
    # Tests of memory collect garbage often: what all of them have imported need not be looked at each time.
    gc.freeze()
    with (results / f"rank-{hvd.rank()}.jsonl").open("w") as file:
        for name, scenario in scenarios:
            if name not in asked["tests"]:
                continue
            torch.manual_seed(0)
            faulthandler.dump_traceback_later(SCENARIO_SECONDS, exit=True)
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
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from real_ranks import Outcomes, run_job


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcomes]:
    """What became of this folder's tests in the job of a size; each job runs once."""
    finished: dict[str, Outcomes] = {}

    def of(job: str) -> Outcomes:
        if job not in finished:
            finished[job] = run_job(Path(__file__).parent, job, tmp_path_factory.mktemp(f"job-{job}"))
        return finished[job]

    return of

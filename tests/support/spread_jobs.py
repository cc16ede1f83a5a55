"""Jobs on hosts of their own, and tests of them that wait at the same time.

Most of such a test's time goes by until a silence is long enough. All tests of a file that are decorated with
`side_by_side` therefore start together, each in a thread with a job and a network of its own; pytest reports
what became of each.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from control_job import ControlJob
from hosts_network import HostsNetwork

HOSTS = ("h0", "h1", "h2")


def do_without(reason: str) -> NoReturn:
    if os.environ.get("GRADSIEVE_REQUIRE_LINK") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def job_on_hosts(folder: Path) -> Iterator[ControlJob]:
    """Give a job with its coordinator in a hub and agents on three hosts with a network of their own."""
    if os.geteuid() != 0 or shutil.which("nsenter") is None:
        do_without("NO HOSTS HERE: network namespaces for agents need root and nsenter(1)")
    try:
        network = HostsNetwork(len(HOSTS))
    except OSError as error:
        do_without(f"NO HOSTS HERE: {error}")
    try:
        job = ControlJob(folder, HOSTS, network)
        try:
            yield job
        finally:
            job.close()
    finally:
        network.close()


def side_by_side(scenario: Callable[[ControlJob], None]) -> Callable[..., None]:
    """Run the decorated ``scenario(job)`` at the same time as the others of its file."""

    def test(started: Callable[[Any], Future[None]]) -> None:
        started(scenario).result()

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    test.side_by_side = scenario  # type: ignore[attr-defined]
    return test


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Future[None]]]:
    """What becomes of the scenarios of this file that pytest was asked for."""
    tests = [getattr(item, "function", None) for item in request.session.items if item.path == request.path]
    scenarios = [test.side_by_side for test in tests if hasattr(test, "side_by_side")]
    with ThreadPoolExecutor(len(scenarios)) as threads:
        futures = {scenario: threads.submit(_run, scenario) for scenario in scenarios}
        yield futures.__getitem__


def _run(scenario: Callable[[ControlJob], None]) -> None:
    # Not in pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="gs-") as folder, job_on_hosts(Path(folder)) as job:
        scenario(job)

"""The thread between rank 0 and the coordinator says what goes wrong once, and never gives up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_coordinator import SmallCoordinator, make_certificates

from gradsieve_hvd import ConfigurationError
from gradsieve_hvd.control.reporter import Reporter
from gradsieve_hvd.control.reporter_connection import Coordinator


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder / "mine")
    make_certificates(folder / "foreign")
    return folder


@pytest.fixture
def reporter(tls: Path) -> Iterator[Callable[[int], Reporter]]:
    """Makes reporters that talk to a port."""
    with contextlib.ExitStack() as connections:

        def make(port: int) -> Reporter:
            coordinator = Coordinator(f"https://127.0.0.1:{port}", tls / "mine" / "worker")
            connections.callback(coordinator.close)
            return Reporter(coordinator)

        yield make


def test_a_sample_is_handed_over_once(tls: Path, reporter: Callable[[int], Reporter]) -> None:
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        mine = reporter(coordinator.port)
        mine.call()
        mine.sample = {"step": 1}
        mine.call()
        mine.call()
        mine.sample = {"step": 2}
        mine.call()
    assert coordinator.samples == [{"step": 1}, {"step": 2}]


def test_the_last_step_is_reported_when_the_training_ends(
    tls: Path, reporter: Callable[[int], Reporter]
) -> None:
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        mine = reporter(coordinator.port)
        mine.sample = {"step": 90, "time": 1.0, "stepSeconds": 0.1}
        mine.step, mine.committed_step = 100, 80
        thread = threading.Thread(target=mine.run)
        thread.start()
        coordinator.wait_for(lambda sample: sample["step"] == 90)
        mine.ended.set()
        thread.join(60)
    last = coordinator.samples[-1]
    assert (last["step"], last["committedStep"], last["stepSeconds"]) == (100, 80, 0.1)
    assert last["time"] > 1.0
    assert [sample["step"] for sample in coordinator.samples] == [90, 100]


def test_a_training_that_ends_before_its_first_sample_reports_nothing(
    tls: Path, reporter: Callable[[int], Reporter]
) -> None:
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        mine = reporter(coordinator.port)
        mine.step = 1
        mine.ended.set()
        mine.run()
    assert coordinator.samples == []


def test_an_older_plan_changes_nothing(tls: Path, reporter: Callable[[int], Reporter]) -> None:
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        coordinator.plan = {"generation": 4, "densityPermille": 20}
        mine = reporter(coordinator.port)
        mine.call()
        coordinator.plan = {"generation": 3, "densityPermille": 10}
        mine.call()
    assert mine.plan.generation == 4
    assert mine.plan.densities.density == 0.02


def test_a_refused_plan_is_told_once_per_plan(
    tls: Path, reporter: Callable[[int], Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    senseless = ({"generation": 1, "densityPermille": True}, ["no", "object"], {"generation": -1})
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        mine = reporter(coordinator.port)
        for plan in senseless:
            coordinator.plan = plan
            mine.call()
            mine.call()
    assert capsys.readouterr().err.count("plan is refused and plan 0 (densities as configured) stays") == 3
    assert mine.plan.generation == 0


def test_a_coordinator_that_goes_and_comes_is_told_once_each(
    tls: Path, reporter: Callable[[int], Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCoordinator(tls / "mine" / "coordinator") as coordinator:
        mine = reporter(coordinator.port)
        mine.call()
    mine.sample = {"step": 7}
    for _ in range(3):
        mine.call()
    with SmallCoordinator(tls / "mine" / "coordinator", port=coordinator.port) as again:
        mine.call()
        mine.call()
    assert again.samples == [{"step": 7}]
    said = capsys.readouterr().err
    assert said.count("does not answer; the training goes on") == 1
    assert said.count("answers again") == 1


@pytest.mark.parametrize("impostor", ["foreign/coordinator", "mine/worker"])
def test_only_the_coordinator_of_ones_own_job_is_talked_to(
    impostor: str, tls: Path, reporter: Callable[[int], Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCoordinator(tls / impostor, {"generation": 1}) as other:
        mine = reporter(other.port)
        mine.sample = {"step": 1}
        mine.call()
    assert other.samples == []
    assert mine.plan.generation == 0
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["http://somewhere:1", "somewhere", "https://"])
def test_an_address_without_tls_is_refused(address: str, tls: Path) -> None:
    with pytest.raises(ConfigurationError, match="GRADSIEVE_COORDINATOR"):
        Coordinator(address, tls / "mine" / "worker")


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ca.crt"):
        Coordinator("https://127.0.0.1:1", tmp_path)

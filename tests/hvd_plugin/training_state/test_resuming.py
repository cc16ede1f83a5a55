"""A training that goes on from a commit is the training that was never interrupted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from committed import Run, commit_file, committed, folder
from real_ranks import GLOO, on_ranks, run_alone
from training import assert_same, laplace, perceptron, residuals

import gradsieve_hvd
from gradsieve import MomentumCorrection
from gradsieve_hvd.training_state import files

SUPPORT = Path(__file__).parents[2] / "support"


@on_ranks
def test_a_resumed_training_goes_on_bit_for_bit(hvd: Any) -> None:
    with folder(hvd) as directory:
        torch.manual_seed(hvd.rank())
        expected = Run(hvd, directory / "whole").train(7)
        drawn = torch.rand(3)
        torch.manual_seed(hvd.rank())
        Run(hvd, directory / "parts").train(4)
        torch.manual_seed(99)
        resumed = Run(hvd, directory / "parts", seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(resumed.train(7), expected)
        assert resumed.state.values["seen"] == 7 * 8
        assert resumed.scheduler.last_epoch == 7
        assert torch.equal(torch.rand(3), drawn)


@on_ranks
def test_policies_velocities_and_other_optimizers_go_on_too(hvd: Any) -> None:
    for compression in (
        laplace(momentum=MomentumCorrection(momentum=0.5, allow_double_momentum=True)),
        laplace(clip_global_norm=0.05),
        gradsieve_hvd.Compression.layered(density=0.05, min_elements=100, adapt_steps=2, timeout_seconds=30),
        hvd.Compression.none,
    ):
        with folder(hvd) as directory:
            torch.manual_seed(hvd.rank())
            expected = Run(hvd, directory / "whole", compression=compression).train(7)
            torch.manual_seed(hvd.rank())
            Run(hvd, directory / "parts", compression=compression).train(4)
            assert_same(Run(hvd, directory / "parts", seed=1, compression=compression).train(7), expected)


@on_ranks
def test_a_compiled_model_goes_on_from_a_commit_of_the_plain_one(hvd: Any) -> None:
    with folder(hvd) as directory:
        torch.manual_seed(hvd.rank())
        expected = Run(hvd, directory / "whole").train(4)
        torch.manual_seed(hvd.rank())
        Run(hvd, directory / "parts").train(2)
        resumed = Run(
            hvd, directory / "parts", seed=1, wrap=lambda model: torch.compile(model, backend="eager")
        )
        assert set(dict(resumed.model.named_parameters())) != set(dict(perceptron().named_parameters()))
        assert_same(resumed.train(4), expected)


@on_ranks
def test_with_nothing_to_restore_all_ranks_begin_at_step_0(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        run = Run(hvd, directory)
        before = run.train(0)
        assert run.state.restore() == 0
        assert_same(run.train(0), before)


@on_ranks
def test_the_last_two_commits_are_kept(hvd: Any) -> None:
    with folder(hvd) as directory:
        Run(hvd, directory, every=2).train(9)
        assert committed(directory, hvd.rank()) == [6, 8]
        assert Run(hvd, directory, every=2).state.restore() == 8


@on_ranks
def test_what_was_committed_after_the_restored_step_is_gone(hvd: Any) -> None:
    with folder(hvd) as directory:
        Run(hvd, directory).train(5)
        hvd.barrier()
        if hvd.rank() == 0:
            commit_file(directory, 5, 0).unlink()
        hvd.barrier()
        assert Run(hvd, directory).state.restore() == 4
        assert committed(directory, hvd.rank())[-1] == 4


@on_ranks
def test_discarding_leaves_nothing_of_the_rank(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        run = Run(hvd, directory)
        run.train(5)
        run.state.discard()
        assert list(directory.iterdir()) == []


@on_ranks
def test_residuals_of_ranks_that_moved_to_another_number_are_kept(hvd: Any) -> None:
    """Hosts may change their order: a residual is paid by whoever finds it."""
    with folder(hvd, apart=True) as directory:
        run = Run(hvd, directory)
        run.train(3)
        owed = torch.cat([residuals(run.optimizer)[name] for name in sorted(residuals(run.optimizer))])
        everyone = hvd.allgather(owed.reshape(1, -1), name="owed")
        source = (hvd.rank() + 1) % hvd.size()
        moved = Run(hvd, directory.parent / str(source), seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert moved.state.restore() == 3
        now = residuals(moved.optimizer)
        assert torch.equal(torch.cat([now[name] for name in sorted(now)]), everyone[source])
        moved.train(4, first=3)
        hvd.barrier()
        assert committed(directory.parent / str(source), source) == [3], "until two new commits are there"
        moved.train(5, first=4)
        hvd.barrier()
        assert committed(directory.parent / str(source), hvd.rank()) == [4, 5]
        assert committed(directory.parent / str(source), source) == [], "two new commits replace the old ones"


@on_ranks
def test_ranks_that_moved_to_another_number_need_no_more_room_than_others(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        Run(hvd, directory).train(4)
        there = directory.parent / str((hvd.rank() + 1) % hvd.size())
        hvd.barrier()
        moved, write, counts = Run(hvd, there, seed=1), files.write, []

        def counted(path: Path, *content: Any) -> None:
            write(path, *content)
            counts.append(len(list(there.iterdir())))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "write", counted)
            moved.train(9)
        assert counts == [2, 3, 3, 3, 3], "the commit that was restored, the new ones and a draft"


PROGRAM = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(SUPPORT)!r})
import horovod.torch as hvd, torch
hvd.init()
torch.manual_seed(hvd.rank())
from committed import Run
from training import assert_same
directory = Path(os.environ["COMMITS"])
"""
KILLED = """
rename = Path.replace
def killed_before_renaming(self, target):
    if hvd.rank() == 1 and "step-000000000004" in str(target):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.replace = killed_before_renaming
Run(hvd, directory).train(9)
"""
RESUMED = """
run = Run(hvd, directory, seed=1)
step = run.state.restore()
print(f"rank {hvd.rank()} goes on from step {step}", flush=True)
resumed = run.train(9, first=step)
torch.manual_seed(hvd.rank())
assert_same(resumed, Run(hvd, directory / "whole").train(9))
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("job", ["2", GLOO])
def test_a_rank_killed_between_writing_and_renaming_costs_one_commit(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITS", str(tmp_path / "commits"))
    status, output = run_alone(PROGRAM + KILLED, 2, tmp_path, gloo=job == GLOO)
    assert status not in (0, 124), output
    status, output = run_alone(PROGRAM + RESUMED, 2, tmp_path, gloo=job == GLOO)
    assert status == 0, output
    assert "rank 0 goes on from step 3" in output
    assert "rank 1 goes on from step 3" in output

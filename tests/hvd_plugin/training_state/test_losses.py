"""What is lost, and what is not, when a rank, a commit or a whole host is gone."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from committed import Run, commit_file, committed, folder, spoil
from real_ranks import on_ranks
from training import assert_equal_on_all_ranks, assert_same, residuals

from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.header import HEADER_BYTES


@on_ranks
def test_a_replaced_rank_gets_the_others_weights_and_a_zero_residual(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        run = Run(hvd, directory)
        weights, owed = run.train(3), residuals(run.optimizer)
        replaced = hvd.rank() == hvd.size() - 1
        if replaced:
            shutil.rmtree(directory)
        after = Run(hvd, directory, seed=1 + hvd.rank())
        if replaced:
            with pytest.warns(
                UserWarning, match=r"no commit of step 3: .*weights of rank 0, without residuals"
            ):
                assert after.state.restore() == 3
        else:
            assert after.state.restore() == 3
        assert after.state.lost.ranks == (hvd.size() - 1,)
        assert 0.0 < after.state.lost.norm < after.state.lost.of
        assert after.state.values["seen"] == 24
        assert after.scheduler.last_epoch == 3
        assert_same(after.train(3, first=3), weights)
        for name, residual in residuals(after.optimizer).items():
            assert torch.equal(residual, torch.zeros_like(residual) if replaced else owed[name])
        assert_equal_on_all_ranks(hvd, after.train(6, first=3))


@on_ranks
def test_a_corrupted_newest_commit_costs_all_ranks_one_commit(hvd: Any) -> None:
    for position in (HEADER_BYTES + 2000, -100, 20):
        with folder(hvd) as directory:
            Run(hvd, directory).train(5)
            hvd.barrier()
            if hvd.rank() == 1:
                spoil(commit_file(directory, 5, 1), position)
            hvd.barrier()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                assert Run(hvd, directory, seed=1).state.restore() == 4
            if hvd.rank() == 0:
                assert any("skipped" in str(one.message) and "rank-1" in str(one.message) for one in said)


@on_ranks
def test_a_truncated_newest_commit_costs_all_ranks_one_commit(hvd: Any) -> None:
    with folder(hvd) as directory:
        Run(hvd, directory).train(5)
        hvd.barrier()
        if hvd.rank() == 0:
            path = commit_file(directory, 5, 0)
            path.write_bytes(path.read_bytes()[:-1])
        hvd.barrier()
        with pytest.warns(UserWarning, match="is truncated"):
            assert Run(hvd, directory).state.restore() == 4


@on_ranks
def test_different_newest_steps_lead_to_the_newest_that_all_have(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        torch.manual_seed(hvd.rank())
        whole = Run(hvd, directory / "whole").train(7)
        torch.manual_seed(hvd.rank())
        Run(hvd, directory, keep=3).train(5)
        if hvd.rank() == 1:
            commit_file(directory, 5, 1).unlink()
        run = Run(hvd, directory, seed=1, keep=3)
        assert run.state.restore() == 4
        assert_same(run.train(7, first=4), whole)


@on_ranks
def test_ranks_of_a_job_of_another_size_keep_weights_and_owe_the_mean_as_much(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        run = Run(hvd, directory)
        weights, owed = run.train(3), residuals(run.optimizer)
        for path in directory.glob("*.commit"):
            opened = files.Opened(path)
            shared, own = opened.load_shared(), opened.load_own()
            own["compressor"]["size"] += 1
            grown = path.with_suffix(".grown")
            files.write(grown, replace(opened.header.commit, size=hvd.size() + 1), shared, own)
            grown.replace(path)
        after = Run(hvd, directory, seed=1)
        with pytest.warns(UserWarning, match=f"committed by {hvd.size() + 1} ranks and is restored by"):
            assert after.state.restore() == 3
        assert_same(after.train(3, first=3), weights)
        assert any(bool(residual.any()) for residual in owed.values())
        for name, residual in residuals(after.optimizer).items():
            torch.testing.assert_close(residual * (hvd.size() + 1), owed[name] * hvd.size())
        assert after.state.lost.ranks == (hvd.size(),)
        assert_equal_on_all_ranks(hvd, after.train(5, first=3))


@on_ranks
def test_commits_of_another_training_with_other_arguments_are_refused_on_every_rank(hvd: Any) -> None:
    from gradsieve_hvd import StateError

    with folder(hvd) as directory:
        Run(hvd, directory).train(2)
        other = Run(hvd, directory, epoch=1)
        with pytest.raises(StateError, match=r"does not fit this training.*'epoch'"):
            other.state.restore()


@on_ranks
def test_durable_commits_survive_the_loss_of_all_hosts(hvd: Any) -> None:
    with folder(hvd) as base:
        memory, durable = base / f"memory-{hvd.rank()}", base / "durable"
        torch.manual_seed(hvd.rank())
        whole = Run(hvd, base / "whole").train(9)
        torch.manual_seed(hvd.rank())
        run = Run(hvd, memory, durable=durable, durable_every=2)
        run.train(7)
        run.state.restore()  # waits for the copies
        hvd.barrier()
        assert committed(durable, hvd.rank()) == [4, 6]
        shutil.rmtree(memory)
        again = Run(hvd, memory, seed=1, durable=durable, durable_every=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert again.state.restore() == 6
        assert_same(again.train(9, first=6), whole)
        sizes = [path.stat().st_size for path in sorted(durable.glob("step-000000000006*"))]
        assert sizes[0] > max(sizes[1:]) + 3000, "only rank 0's holds the weights"


@on_ranks
def test_a_corrupted_durable_commit_costs_one_durable_commit(hvd: Any) -> None:
    with folder(hvd) as base:
        memory, durable = base / f"memory-{hvd.rank()}", base / "durable"
        run = Run(hvd, memory, durable=durable, durable_every=2)
        run.train(7)
        run.state.restore()
        hvd.barrier()
        shutil.rmtree(memory)
        if hvd.rank() == 0:
            spoil(commit_file(durable, 6, 0), HEADER_BYTES + 2000)
        hvd.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert Run(hvd, memory, seed=1, durable=durable).state.restore() == 4


@on_ranks
def test_commits_in_memory_that_are_newer_than_the_durable_ones_win(hvd: Any) -> None:
    with folder(hvd) as base:
        run = Run(hvd, base / "memory", durable=base / "durable", durable_every=4)
        run.train(6)
        again = Run(hvd, base / "memory", durable=base / "durable", durable_every=4)
        assert again.state.restore() == 6

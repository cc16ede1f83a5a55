"""What cannot be committed or restored is said on every rank, and costs nothing that was there."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from committed import Run, committed, folder
from real_ranks import on_ranks
from training import assert_equal_on_all_ranks, assert_same, laplace, weights

from gradsieve_hvd import ConfigurationError, RankMismatch, StateError, TrainingState


@on_ranks
def test_a_full_memory_is_an_error_on_every_rank_and_older_commits_stay(hvd: Any) -> None:
    with folder(hvd) as directory:
        run = Run(hvd, directory)
        run.train(3)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if hvd.rank() == 1:  # as a full folder: the write fails, here with "File too large"
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
        try:
            with pytest.raises(
                StateError, match=r"step 4 was not committed: rank 1: .*must have room for 3 commits"
            ):
                run.train(4, first=3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert committed(directory, hvd.rank()) == [2, 3]
        assert_equal_on_all_ranks(hvd, run.train(6, first=4))
        assert Run(hvd, directory, seed=1).state.restore() == 6


@on_ranks
def test_what_only_code_could_build_is_refused_at_the_first_commit(hvd: Any) -> None:
    with folder(hvd) as directory:
        extra = {"generator": object() if hvd.rank() == 0 else 1}
        with pytest.raises(StateError, match=r"step 1 was not committed: rank 0: "):
            Run(hvd, directory, **extra).train(1)
        assert committed(directory, hvd.rank()) == []


@on_ranks
def test_a_commit_of_another_compression_changes_nothing(hvd: Any) -> None:
    with folder(hvd) as directory:
        Run(hvd, directory).train(2)
        other = Run(hvd, directory, seed=1, compression=laplace(error_feedback=False))
        before = weights(other.model)
        with pytest.raises(StateError, match="error_feedback=False keeps no residual"):
            other.state.restore()
        assert_same(weights(other.model), before)


@on_ranks
def test_ranks_that_commit_different_steps_are_told(hvd: Any) -> None:
    with folder(hvd) as directory:
        run = Run(hvd, directory)
        run.state.restore()
        with pytest.raises(RankMismatch, match=r"different steps: \[5, 6\]"):
            run.state.commit(5 if hvd.rank() == 0 else 6)
        assert committed(directory, hvd.rank()) == []


@on_ranks
def test_committing_before_restoring_is_refused(hvd: Any) -> None:
    with folder(hvd) as directory, pytest.raises(ConfigurationError, match="call restore"):
        Run(hvd, directory).state.commit(1)


@on_ranks
def test_a_folder_that_others_can_write_to_is_refused_on_every_rank(hvd: Any) -> None:
    with folder(hvd, apart=True) as directory:
        directory.mkdir()
        if hvd.rank() == 1:
            directory.chmod(0o777)
        with pytest.raises(StateError, match="rank 1: .*is not a folder of this user alone"):
            Run(hvd, directory).state.restore()


@on_ranks
def test_a_durable_folder_that_fails_is_reported_and_memory_goes_on(hvd: Any) -> None:
    with folder(hvd) as base:
        run = Run(hvd, base / "memory", durable=base / "durable", durable_every=2)
        run.train(1)
        hvd.barrier()
        if hvd.rank() == 0:
            (base / "durable" / "rank-0.draft").mkdir()
        hvd.barrier()
        run.train(3, first=1)
        with pytest.raises(
            StateError, match=r"rank 0: the copy of step 2 in .*\(step 4 is committed in memory\)"
        ):
            run.train(4, first=3)
        assert committed(base / "memory", hvd.rank()) == [3, 4]


@on_ranks
def test_settings_out_of_range_are_refused(hvd: Any) -> None:
    for setting in ({"every": 0}, {"keep": 1}, {"durable_every": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(setting))):
            TrainingState(object(), object(), **setting)  # type: ignore[arg-type]


@on_ranks
def test_steps_are_integers_of_any_kind_and_nothing_else(hvd: Any) -> None:
    with folder(hvd) as directory:
        run = Run(hvd, directory)
        run.state.restore()
        for step in (2.5, -1, "3", None):
            with pytest.raises(ConfigurationError, match="step="):
                run.state.commit(step)
        run.state.commit(np.int64(2))
        assert committed(directory, hvd.rank()) == [2]

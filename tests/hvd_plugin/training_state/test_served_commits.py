"""With a parameter server rank 0 commits one version for all, and all ranks go on from it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from committed import committed, folder
from real_ranks import on_ranks, run_alone
from training import TIMEOUT, assert_equal_on_all_ranks, assert_same, loss_of, perceptron, weights

import gradsieve_hvd
from gradsieve.errors import ConfigurationError

SAMPLES, BATCH, RANKS, EPOCHS = 120, 8, 2, 3


@contextlib.contextmanager
def messages(hvd: Any) -> Iterator[Any]:
    """What makes a transport with messages to single ranks; Horovod's own Gloo has none."""
    if hvd.mpi_enabled():
        yield lambda: None
        return
    from gloo_group import gloo

    from gradsieve_hvd.transport.torch_distributed import TorchDistributedTransport

    with gloo(hvd):
        yield TorchDistributedTransport


class Served:
    """A training in a mode with a parameter server; a new process in all but name."""

    def __init__(
        self, hvd: Any, transport: Any, directory: Path, *, mode: str = "bsp", seed: int = 0
    ) -> None:
        self.rank, self.model = hvd.rank(), perceptron(seed)
        self.optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.AdamW(self.model.parameters(), lr=0.01),
            self.model.named_parameters(),
            mode=mode,
            exchange="dense",
            transport=transport,
        )
        self.state = gradsieve_hvd.TrainingState(
            self.model, self.optimizer, directory=directory, every=2, timeout_seconds=TIMEOUT, seen=0
        )

    def train(self, until: int) -> int:
        first = self.state.restore()
        for step in range(first, until):
            self.optimizer.zero_grad()
            loss_of(self.model, step, self.rank).backward()
            self.optimizer.step()
            self.state.values["seen"] += 1
            self.state.commit(step + 1)
        self.optimizer.finish()
        return first


@on_ranks
def test_a_training_goes_on_from_weights_and_moments_that_one_rank_has_committed(hvd: Any) -> None:
    with messages(hvd) as new, folder(hvd, apart=True) as directory:
        whole = Served(hvd, new(), directory / "whole")
        whole.train(8)
        Served(hvd, new(), directory / "parts").train(5)  # the last commit is after 4
        assert committed(directory / "parts", hvd.rank()) == ([2, 4] if hvd.rank() == 0 else [])
        resumed = Served(hvd, new(), directory / "parts", seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no rank misses a commit of its own
            assert resumed.train(8) == 4
        assert_equal_on_all_ranks(hvd, weights(resumed.model))
        # A release of bsp is of all ranks' steps; gradients are added up in the order in which they come.
        assert_same(weights(resumed.model), weights(whole.model), atol=1e-5)
        assert resumed.state.values["seen"] == 8
        assert resumed.state.lost.ranks == ()  # nobody's residuals were committed


@on_ranks
def test_ranks_that_step_by_themselves_are_not_waited_for(hvd: Any) -> None:
    with messages(hvd) as new, folder(hvd, apart=True) as directory:
        training = Served(hvd, new(), directory, mode="asp")
        training.train(6 if hvd.rank() == 0 else 3)
        assert committed(directory, hvd.rank()) == ([4, 6] if hvd.rank() == 0 else [])


@on_ranks
def test_nothing_is_committed_once_the_server_is_left(hvd: Any) -> None:
    with messages(hvd) as new, folder(hvd) as directory:
        training = Served(hvd, new(), directory)
        training.train(2)
        if hvd.rank() == 0:
            with pytest.raises(ConfigurationError, match="before finish"):
                training.state.commit(4)
        hvd.barrier()
        assert committed(directory, 0) == [2]


PROGRAM = f"""
import os, signal, sys
from pathlib import Path
import horovod.torch as hvd
import torch
import gradsieve_hvd

hvd.init()
folder, killed = Path({{folder!r}}), {{killed}}
times = torch.nn.ParameterList([torch.zeros({SAMPLES})])  # how often each sample has become weights
optimizer = gradsieve_hvd.DistributedOptimizer(
    torch.optim.SGD(times.parameters(), lr={RANKS * BATCH}), times.named_parameters(), mode="asp",
    exchange="dense",
)
sampler = gradsieve_hvd.DynamicSampler(range({SAMPLES}), optimizer, {BATCH})
state = gradsieve_hvd.TrainingState(times, optimizer, directory=folder / "commits", every=2, sampler=sampler)
step = state.restore()
for epoch in range(sampler.epoch, {EPOCHS}):
    sampler.set_epoch(epoch)
    for places in sampler:
        optimizer.zero_grad()
        (-times[0][places].mean()).backward()
        optimizer.step()
        step += 1
        state.commit(step)
        if hvd.rank() == 0 and killed and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
optimizer.finish()
assert optimizer.samples_seen == {SAMPLES * EPOCHS}, optimizer.samples_seen
assert torch.equal(times[0].detach(), torch.full(({SAMPLES},), {float(EPOCHS)})), times[0]
print("all samples, each in every epoch")
"""


@pytest.mark.timeout(200)
def test_each_sample_counts_once_in_an_epoch_although_rank_0_was_killed_amid_one(tmp_path: Path) -> None:
    before = run_alone(PROGRAM.format(folder=str(tmp_path), killed=True), RANKS, tmp_path)
    assert before[0] != 0, before[1]
    assert committed(tmp_path / "commits", 0) == [2, 4]
    status, said = run_alone(PROGRAM.format(folder=str(tmp_path), killed=False), RANKS, tmp_path)
    assert status == 0, said
    assert said.count("all samples, each in every epoch") == RANKS, said

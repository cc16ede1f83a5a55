"""DistributedDataParallel's gradients travel by gradsieve: two real gloo ranks, started once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ddp_program
import pytest
from torch.distributed import TCPStore

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """What the ranks said, by rank. They meet at a store of this process, as torchrun's do at its agent's: it
    listens before its port is told, so that nobody else can take that.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environment = {**os.environ, **common, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(ddp_program.__file__))],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=240)[0] for rank in ranks]
    return [dict(json.loads(line) for line in lines.splitlines() if line[0] == "[") for lines in printed]


@pytest.mark.parametrize("exchange", ["dense", "allgather", "ring", "scatter"])
def test_when_all_is_sent_it_trains_like_plain_ddp(said, exchange):
    assert max(each[exchange] for each in said) < 1e-5  # sums in another order


@pytest.mark.parametrize("exchange", ["fp16", "bf16", "lowrank"])
def test_rounded_gradients_train_nearly_like_plain_ddp(said, exchange):
    assert max(each[exchange] for each in said) < 2e-2


@pytest.mark.parametrize("option", ddp_program.DDP_OPTIONS)
def test_options_of_ddp_change_nothing(said, option):
    assert max(each[option] for each in said) < 1e-5


def test_nothing_is_exchanged_without_synchronization(said):
    assert [each["no_sync"] for each in said] == [1, 1]


def test_a_gradient_that_is_not_finite_is_named_on_all_ranks_and_training_goes_on(said):
    assert all("on rank 1" in each["nonfinite"] for each in said)
    assert [each["kept"] for each in said] == [True, True]
    assert [each["went on"] for each in said] == [2, 2]


def test_a_rank_that_has_joined_takes_part_until_the_others_are_done(said):
    assert [each["joined"] for each in said] == [6, 6]


def test_residuals_are_loaded_as_they_were_saved(said):
    assert [each["loaded"] for each in said] == [1, 1]


def test_unlike_settings_are_an_error_on_all_ranks(said):
    assert all("density" in each["mismatch"] for each in said)


@pytest.mark.parametrize("exchange", ["allgather", "scatter", "lowrank"])
def test_nothing_is_sent_of_a_layer_that_no_rank_uses(said, exchange):
    """DDP would not apply it."""
    assert [each[f"unused {exchange}"] for each in said] == [True, True]


def test_gradients_are_averaged_in_the_models_own_group(said):
    assert [each["own group"] for each in said] == [0, 1]
    assert "over ranks [0, 1]" in said[0]["other group"]


def test_buckets_that_would_not_come_are_refused(said):
    assert all("skip_all_reduce_unused_params" in each["skipping"] for each in said)


def test_a_lost_rank_is_an_error_rather_than_a_hang(said):
    assert "rank 0" in said[0]["lost"]


def test_neither_horovod_nor_mpi_is_imported(said):
    assert [each["imported"] for each in said] == [[], []]

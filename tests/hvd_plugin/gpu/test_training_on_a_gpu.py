"""Gradients on a GPU come to the same as gradients on CPUs, by every path: two ranks that share a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cuda_program
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def said():
    pytest.importorskip("horovod.torch")
    command = [sys.executable, "-m", "gradsieve_hvd.cli", "run", "-np", "2", "--", sys.executable]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, str(Path(cuda_program.__file__))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("exchange", [*cuda_program.SELECTS, "fp16", "bf16"])
def test_every_exchange_applies_the_bits_that_it_applies_on_cpus(said, exchange):
    assert said[exchange] == 0.0


def test_whole_gradients_are_summed_alike(said):
    assert said["dense"] <= 1e-5  # the GPU's own collectives may add up in another order


@pytest.mark.parametrize("rule", list(cuda_program.RULES))
def test_every_rule_selects_what_it_selects_on_cpus(said, rule):
    assert said[f"own, {rule}"] == 0.0


@pytest.mark.parametrize("rule", [rule for rule in cuda_program.RULES if rule != "clipping"])
def test_the_drop_in_applies_the_bits_that_it_applies_on_cpus(said, rule):
    assert said[f"drop-in, {rule}"] == 0.0


def test_whole_gradients_do_not_leave_the_gpu(said):
    built, why = said["nccl"]
    assert built == ("by NCCL" in why)


@pytest.mark.parametrize("exchange", ["dense", "allgather", "ring", "scatter"])
def test_ddp_with_the_hook_trains_like_plain_ddp_over_nccl(said, exchange):
    assert said[f"ddp, {exchange}"] < 1e-5


@pytest.mark.parametrize("exchange", ["fp16", "lowrank"])
def test_ddp_with_rounded_gradients_trains_nearly_like_plain_ddp(said, exchange):
    assert said[f"ddp, {exchange}"] < 2e-2


def test_mixed_precision_trains_and_steps_that_overflow_are_skipped(said):
    first, last, scale = said["amp"]
    assert last < first / 3
    assert scale < 2.0**40


def test_no_memory_of_the_gpu_is_kept_from_step_to_step(said):
    early, late = said["memory"]
    assert late <= early

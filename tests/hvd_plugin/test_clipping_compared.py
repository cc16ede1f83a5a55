"""Clipping before accumulation against clipping what arrives, on both tasks: which of them trains."""

import math

import pytest
import torch
from torch import nn

from gradsieve import Compression
from gradsieve_hvd.experiments.simulate import training
from gradsieve_hvd.experiments.tasks import TASKS

SETUPS = {"digits": (4, 120, 0.1, 10_000), "charlm-small": (2, 60, 0.1, 1_000)}
"""Ranks, steps, bound (below the norm of most gradients), and what is compressed."""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def norm_of(model):
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))


def trained(name, *, compressed, before):
    """Return the metric, and the mean share of the norm that clipping after the exchange takes away."""
    ranks, steps, bound, least = SETUPS[name]
    task, taken = TASKS[name](), []

    def clip(model):
        taken.append(1 - min(1.0, bound / norm_of(model)))
        nn.utils.clip_grad_norm_(model.parameters(), bound)

    *_, last = training(
        task,
        Compression.topk(0.01, min_elements=least) if compressed else None,
        ranks=ranks,
        steps=steps,
        clip_global_norm=bound if before else None,
        before_step=(lambda _: None) if before else clip,
    )
    return task.evaluate(last.model), sum(taken) / max(len(taken), 1)


@pytest.mark.parametrize("name", SETUPS)
def test_clipping_before_accumulation_trains_better_than_clipping_what_arrives(name):
    before, _ = trained(name, compressed=True, before=True)
    after, lost = trained(name, compressed=True, before=False)
    assert lost > 0.2, "a bound at which the drop-in warns"
    better = 1 if TASKS[name]().metric == "accuracy" else -1
    assert better * before > better * (1 + better * 0.02) * after


def test_without_compression_both_clip_alike():
    after, _ = trained("charlm-small", compressed=False, before=False)
    before, _ = trained("charlm-small", compressed=False, before=True)
    assert before == pytest.approx(after, rel=0.02)

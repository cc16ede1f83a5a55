"""Real training: what is sent stays near what was asked for, by every threshold rule."""

import functools

import pytest
import torch

from gradsieve import Compression, LossRecorder
from gradsieve.density import entries_to_keep
from gradsieve_hvd.experiments.simulate import training
from gradsieve_hvd.experiments.tasks import TASKS

RULES = [
    pytest.param(Compression.laplace, id="laplace"),
    pytest.param(Compression.sampled, id="sampled"),
    pytest.param(functools.partial(Compression.layered, adapt_steps=20), id="layered"),
    pytest.param(
        functools.partial(Compression.importance, loss_power=0, recorder=LossRecorder()), id="importance"
    ),
]


@pytest.mark.parametrize("make", RULES)
def test_kept_entries_are_in_the_band_in_99_of_100_selections_and_never_none(make):
    torch.set_num_threads(1)
    ratios, density = [], 0.01
    for step in training(TASKS["digits"](), make(density), ranks=1, steps=120):
        for name, layer in step.ranks[0].layers.items():
            elements = {"0.weight": 40_960, "2.weight": 409_600}[name]
            ratios.append(layer.kept / entries_to_keep(layer.density, elements))
    assert len(ratios) == 240
    assert min(ratios) > 0
    assert sum(0.8 <= ratio <= 1.25 for ratio in ratios) >= 0.99 * len(ratios)


def test_a_layered_training_stays_within_its_budget_while_densities_move():
    torch.set_num_threads(1)
    config = Compression.layered(0.01, adapt_steps=10, dead_band=0.02)
    seen = set()
    for step in training(TASKS["digits"](), config, ranks=1, steps=120):
        densities = [step.ranks[0].layers[name].density for name in ("0.weight", "2.weight")]
        assert all(0.001 <= density <= 0.1 for density in densities)
        assert (densities[0] + 10 * densities[1]) / 11 <= 0.01 * (1 + 1e-12)
        seen.add(tuple(densities))
    assert len(seen) > 3

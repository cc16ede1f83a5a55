"""A gradient is clipped to a norm before it is accumulated."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression, MomentumCorrection, NoResidual
from gradsieve.clipping import ClippedFeedback
from gradsieve.policies.energy import kept_energy_gain, norm


def begin(gradient: torch.Tensor, clip_norm: float, unscale: float = 1.0) -> torch.Tensor:
    return ClippedFeedback(NoResidual(), clip_norm).begin(gradient, unscale).tensor()


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=50),
    clip_norm=st.floats(1e-3, 1e3),
    unscale=st.sampled_from([1.0, 2.0**-16]),
)
def test_the_norm_is_at_most_the_bound_and_the_direction_stays(values, clip_norm, unscale):
    gradient = torch.tensor(values)
    clipped = begin(gradient, clip_norm, unscale)
    assert norm(clipped) <= clip_norm * (1 + 1e-6) or math.isclose(norm(clipped), clip_norm, rel_tol=1e-6)
    wanted = gradient.double() * unscale
    wanted *= min(1.0, clip_norm / max(norm(wanted), 1e-300))
    # fp32 rounding, and what is below its smallest number
    torch.testing.assert_close(clipped.double(), wanted, rtol=1e-6, atol=1e-37)


def test_a_short_gradient_passes_bit_for_bit():
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(begin(gradient, 1e3), gradient)


def test_clipping_comes_before_momentum_and_accumulation():
    config = Compression.topk(0.5, momentum=MomentumCorrection(momentum=0.5, masking=False), clip_norm=1.0)
    made = SoleTensor(config, 2)
    for step in range(2):
        made.compress(torch.tensor([0.0, 1e20]), step=step)
        made.commit()
    assert made.state_dict()["feedback"]["velocity"].tolist() == [0.0, 1.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_rather_than_clipped(bad):
    made = SoleTensor(Compression.topk(0.5, clip_norm=1.0), 2)
    made.compress(torch.tensor([1.0, bad]), step=0)
    assert made.refused


def test_squares_beyond_fp32_do_not_overflow():
    assert norm(torch.full((4,), 1e30)) == pytest.approx(2e30)
    assert norm(torch.full((4,), 6e4, dtype=torch.float16)) == pytest.approx(1.2e5, rel=1e-3)


def test_the_norm_does_not_depend_on_the_layout():
    tensor = torch.randn(64, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    assert norm(tensor.to(memory_format=torch.channels_last)) == norm(tensor)
    assert norm(torch.empty(0)) == 0.0


def test_the_gain_is_the_kept_share_of_the_norm():
    accumulated = torch.tensor([3.0, 0.0, 4.0, 12.0])
    assert kept_energy_gain(accumulated[:3], accumulated) == pytest.approx(5 / 13)
    assert kept_energy_gain(accumulated, accumulated) == 1.0
    assert kept_energy_gain(torch.empty(0), torch.zeros(4)) is None


def test_measuring_a_norm_changes_nothing():
    tensor = torch.full((3,), 2.0, dtype=torch.float64)
    norm(tensor)
    assert tensor.tolist() == [2.0] * 3

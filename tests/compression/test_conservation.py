"""The law of error feedback: everything sent plus the residual is everything given.

Tolerance: a step rounds once, in ``gradient * unscale + residual`` (relative error 2**-24 of a value that
    never
exceeds the sum of the magnitudes given so far). What is taken away again, ``value - sent``, is exact, except
that clamping to a half format's range may round once more. So T steps stay within 2 * T * 2**-24 of that sum.
"""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

import gradsieve

RULES = [
    pytest.param(gradsieve.Compression.sampled, id="sampled"),
    pytest.param(functools.partial(gradsieve.Compression.layered, bounds=(0.001, 1.0)), id="layered"),
    pytest.param(functools.partial(gradsieve.Compression.importance, bounds=(0.001, 1.0)), id="importance"),
    pytest.param(
        functools.partial(gradsieve.Compression.laplace, clip_norm=1e30), id="clipping that never clips"
    ),
    pytest.param(gradsieve.Compression.topk, id="topk"),
    pytest.param(gradsieve.Compression.group_topk, id="group_topk"),
    pytest.param(gradsieve.Compression.laplace, id="laplace"),
]
ROUNDING = 2.0**-24


def gradient(generator: torch.Generator, elements: int, dtype: torch.dtype) -> torch.Tensor:
    spread = torch.exp(4 * torch.randn(elements, generator=generator))
    return (torch.randn(elements, generator=generator) * spread).clamp(-6e4, 6e4).to(dtype)


def received(payload: torch.Tensor, elements: int) -> torch.Tensor:
    total = torch.zeros(elements)
    gradsieve.decode(payload, elements).add_into(total)
    return total.double()


@pytest.mark.parametrize("make", RULES)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 3000),
    density=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]),
    value_dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    scale=st.sampled_from([1.0, 2.0**-3, 2.0**5]),
    outcomes=st.lists(st.sampled_from(["commit", "rollback", "neither", "non-finite"]), max_size=8),
)
def test_what_was_sent_and_what_is_left_add_up_to_what_was_given(
    make, seed, elements, density, value_dtype, dtype, scale, outcomes
):
    layer = SoleTensor(make(density=density, value_dtype=value_dtype), elements)
    generator = torch.Generator().manual_seed(seed)
    given_, sent, magnitude = (torch.zeros(elements, dtype=torch.float64) for _ in range(3))
    for step, outcome in enumerate(outcomes):
        value = gradient(generator, elements, dtype)
        if outcome == "non-finite":
            value[step % elements] = float("inf")
        payload = layer.compress(value, step=step, unscale=scale)
        if outcome in ("commit", "non-finite"):
            layer.commit()
        elif outcome == "rollback":
            layer.rollback()
        if outcome == "commit":
            given_ += value.double() * scale
            magnitude += value.double().abs() * scale
            sent += received(payload, elements)
    left = layer.state_dict()["feedback"]["residual"].double()
    assert bool(((given_ - sent - left).abs() <= 2 * len(outcomes) * ROUNDING * magnitude).all())


def test_without_error_feedback_what_is_not_sent_is_lost():
    layer = SoleTensor(gradsieve.Compression.topk(0.5, error_feedback=False), 4)
    first = received(layer.compress(torch.tensor([4.0, 1.0, 3.0, 2.0]), step=0), 4)
    layer.commit()
    second = received(layer.compress(torch.zeros(4), step=1), 4)
    assert first.tolist() == [4.0, 0.0, 3.0, 0.0]
    assert second.tolist() == [0.0] * 4
    assert layer.state_dict()["feedback"] == {}


def test_values_beyond_float16_arrive_over_several_steps():
    layer = SoleTensor(gradsieve.Compression.topk(0.5, value_dtype="float16"), 2)
    total = torch.zeros(2, dtype=torch.float64)
    for step, value in enumerate([150_000.0, 0.0, 0.0]):
        total += received(layer.compress(torch.tensor([value, 0.0]), step=step), 2)
        layer.commit()
    assert total.tolist() == [150_000.0, 0.0]

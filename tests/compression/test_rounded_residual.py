"""A residual in bf16: half the memory; what rounding loses is bounded, and nothing else is lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression, ConfigurationError, decode

ROUNDING = 2.0**-7  # relative distance of neighbours in bf16; half of it is the most that a rounding takes


def layer(elements: int, make=Compression.laplace, **settings) -> SoleTensor:
    return SoleTensor(make(residual_dtype="bfloat16", **settings), elements)


def left(compressor: SoleTensor) -> torch.Tensor:
    return compressor.state_dict()["feedback"]["residual"]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 3000),
    density=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    make=st.sampled_from([Compression.topk, Compression.group_topk, Compression.laplace]),
    value_dtype=st.sampled_from(["float32", "float16", "int4"]),
    outcomes=st.lists(st.sampled_from(["commit", "rollback"]), max_size=6),
)
def test_each_step_loses_at_most_the_rounding_of_what_is_left(
    seed, elements, density, make, value_dtype, outcomes
):
    compressor = layer(elements, make, density=density, value_dtype=value_dtype)
    generator = torch.Generator().manual_seed(seed)
    for step, outcome in enumerate(outcomes):
        before = left(compressor).double()
        gradient = torch.randn(elements, generator=generator)
        sent = torch.zeros(elements)
        decode(compressor.compress(gradient, step=step), elements).add_into(sent)
        getattr(compressor, outcome)()
        after = left(compressor).double()
        if outcome == "rollback":
            assert torch.equal(after, before)
        else:
            owed = before + gradient.double() - sent.double()
            sums = (before.abs() + gradient.double().abs()) * 2.0**-23
            assert bool(((owed - after).abs() <= owed.abs() * ROUNDING / 2 + sums).all())


def test_it_takes_half_the_memory_and_says_so_in_its_state():
    compressor = layer(1000)
    compressor.compress(torch.randn(1000), step=0)
    compressor.commit()
    assert left(compressor).dtype == torch.bfloat16
    assert bool(left(compressor).any())


def test_what_would_round_to_infinity_is_held_at_the_largest_number():
    compressor = layer(2, Compression.topk, density=0.5)
    largest = torch.finfo(torch.float32).max
    compressor.compress(torch.tensor([largest, largest]), step=0)
    compressor.commit()
    assert sorted(left(compressor).tolist()) == [0.0, torch.finfo(torch.bfloat16).max]


def test_tensors_of_one_thread_share_work_space_and_nothing_else():
    together, alone = [layer(500), layer(300)], [layer(500), layer(300)]
    generator = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(n, generator=generator) for n in (500, 300)] for _ in range(4)]
    for step, pair in enumerate(gradients):
        for compressor, gradient in zip(together, pair, strict=True):
            compressor.compress(gradient, step=step)
        for compressor in together:
            compressor.commit()
    for number, compressor in enumerate(alone):
        for step, pair in enumerate(gradients):
            compressor.compress(pair[number], step=step)
            compressor.commit()
        assert torch.equal(left(compressor), left(together[number]))


def test_a_state_in_the_other_format_is_refused_and_changes_nothing():
    saved = SoleTensor(Compression.laplace(), 10).state_dict()
    compressor = layer(10)
    compressor.compress(torch.arange(10.0), step=0)
    compressor.commit()
    before = left(compressor)
    with pytest.raises(ConfigurationError, match="residual_dtype"):
        compressor.load_state_dict(saved)
    assert torch.equal(left(compressor), before)


def test_a_saved_state_goes_on_bit_for_bit():
    first, second = layer(400), layer(400)
    for step in range(3):
        first.compress(torch.randn(400), step=step)
        first.commit()
    second.load_state_dict(first.state_dict())
    gradient = torch.randn(400)
    assert torch.equal(first.compress(gradient, step=3), second.compress(gradient, step=3))


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigurationError, match="residual_dtype='float16'"):
        Compression.laplace(residual_dtype="float16")

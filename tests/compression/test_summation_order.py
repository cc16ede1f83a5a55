"""Thresholds are the same bits whatever the order in which elements are looked at."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import GroupTopKSelector, LaplaceSelector, TopKSelector
from gradsieve.kernels import as_accumulated

LAPLACE = LaplaceSelector((0.8, 1.25))


def wide(seed: int, elements: int) -> torch.Tensor:
    """Return magnitudes of many orders, whose floating-point sum depends on the order."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=generator)
    return values * torch.exp(6 * torch.randn(elements, generator=generator))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), elements=st.integers(2, 5000))
def test_a_permutation_changes_neither_threshold_nor_number(seed, elements):
    values = wide(seed, elements)
    shuffled = values[torch.randperm(elements, generator=torch.Generator().manual_seed(seed + 1))]
    for rule in (LAPLACE, TopKSelector()):
        first, second = rule.select(values, 0.05, None), rule.select(shuffled, 0.05, None)
        assert first.threshold == second.threshold
        assert first.indices.numel() == second.indices.numel()


@pytest.mark.parametrize(
    "rule", [LAPLACE, TopKSelector(), GroupTopKSelector(256)], ids=lambda rule: type(rule).__name__
)
def test_the_number_of_threads_changes_nothing(rule):
    values = wide(11, 600_001)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = rule.select(values, 0.01, None)
        torch.set_num_threads(4)
        together = rule.select(values, 0.01, None)
    finally:
        torch.set_num_threads(threads)
    assert alone.threshold == together.threshold
    assert torch.equal(alone.indices, together.indices)


@settings(max_examples=30)
@given(values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=100))
def test_the_mean_magnitude_is_that_of_exact_arithmetic_to_fixed_point_resolution(values):
    tensor = torch.tensor(values)
    exact = sum(abs(value) for value in tensor.double().tolist()) / len(values)
    largest = float(tensor.double().abs().max())
    assert as_accumulated(tensor).mean_magnitude() == pytest.approx(exact, rel=1e-12, abs=largest * 2.0**-29)

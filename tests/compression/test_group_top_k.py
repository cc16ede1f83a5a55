"""Group top-k (method C, step 1): every group gives the same number, ties by lowest index."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import GroupTopKSelector
from gradsieve.density import entries_per_group

VALUES = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 1e-40]), min_size=1, max_size=90)


def by_definition(values: list[float], group_size: int, density: str) -> list[int]:
    kept: list[int] = []
    for start in range(0, len(values), group_size):
        group = range(start, min(start + group_size, len(values)))
        count = max(1, math.floor(Fraction(density) * len(group)))
        kept += sorted(sorted(group, key=lambda index: (-abs(values[index]), index))[:count])
    return kept


@settings(max_examples=50)
@given(
    values=VALUES, group_size=st.integers(1, 40), density=st.sampled_from(["0.01", "0.1", "0.29", "0.5", "1"])
)
def test_each_group_keeps_its_largest_and_of_equals_the_first(values, group_size, density):
    accumulated = torch.tensor(values)
    selection = GroupTopKSelector(group_size).select(accumulated, float(density), None)
    assert selection.indices.tolist() == by_definition(accumulated.tolist(), group_size, density)
    assert torch.equal(selection.values, accumulated[selection.indices])
    assert selection.threshold == float(selection.values.abs().min())


def test_a_large_tensor_agrees_with_the_definition():
    accumulated = torch.randn(10 * 1024 + 300, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    selection = GroupTopKSelector(1024).select(accumulated, 0.01, None)
    assert selection.indices.tolist() == by_definition(accumulated.tolist(), 1024, "0.01")


@pytest.mark.parametrize(
    ("density", "length", "count"),
    [
        pytest.param(0.01, 1024, 10, id="rounded down"),
        pytest.param(0.01, 99, 1, id="a short last group gives at least one"),
        pytest.param(0.29, 100, 29, id="the decimal as written, although 0.29 * 100 < 29 in binary"),
        pytest.param(1.0, 1024, 1024, id="all"),
        pytest.param(0.5, 0, 0, id="no last group"),
    ],
)
def test_the_number_per_group_is_rounded_down_but_at_least_one(density, length, count):
    assert entries_per_group(density, length) == count


def test_a_tensor_shorter_than_a_group_is_one_group():
    selection = GroupTopKSelector(1024).select(torch.tensor([1.0, -5.0, 2.0]), 0.01, None)
    assert selection.indices.tolist() == [1]


def test_an_empty_tensor_gives_an_empty_selection():
    assert GroupTopKSelector(8).select(torch.empty(0), 0.5, None).indices.numel() == 0

"""Exact top-k: exactly k = ceil(density * N), ties by lowest index, whatever the hint."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import TopKSelector
from gradsieve.density import entries_to_keep

SELECTOR = TopKSelector()
FEW_MAGNITUDES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-45, -3e38])
VALUES = st.lists(
    st.one_of(FEW_MAGNITUDES, st.floats(-(2.0**100), 2.0**100, width=32)), min_size=1, max_size=80
)


def by_definition(values: list[float], count: int) -> list[int]:
    order = sorted(range(len(values)), key=lambda index: (-abs(values[index]), index))
    return sorted(order[:count])


@settings(max_examples=50)
@given(
    values=VALUES, density=st.floats(0.001, 1.0), warm=st.one_of(st.none(), st.floats(0, 2.0**127, width=32))
)
def test_the_largest_are_kept_and_of_equals_the_first_whatever_the_hint(values, density, warm):
    accumulated = torch.tensor(values)
    before = accumulated.clone()
    selection = SELECTOR.select(accumulated, density, warm)
    expected = by_definition(accumulated.tolist(), entries_to_keep(density, len(values)))
    assert selection.indices.tolist() == expected
    assert torch.equal(selection.values, accumulated[expected])
    assert selection.threshold == min(abs(value) for value in accumulated[expected].tolist())
    assert torch.equal(accumulated, before)


@pytest.mark.parametrize(
    ("density", "elements", "count"),
    [
        pytest.param(0.01, 1, 1, id="at least one"),
        pytest.param(0.01, 0, 0, id="none of none"),
        pytest.param(0.01, 101, 2, id="rounded up"),
        pytest.param(0.07, 100, 7, id="the decimal as written, although 0.07 * 100 > 7 in binary"),
        pytest.param(1.0, 5, 5, id="all"),
        pytest.param(1, 2**40, 2**40, id="beyond int32"),
    ],
)
def test_k_is_the_density_times_n_rounded_up(density, elements, count):
    assert entries_to_keep(density, elements) == count


def test_a_good_hint_on_a_large_tensor_gives_the_same_as_no_hint():
    generator = torch.Generator().manual_seed(1)
    accumulated = torch.randn(200_000, generator=generator).round(decimals=2)
    cold = SELECTOR.select(accumulated, 0.01, None)
    assert cold.indices.numel() == 2000
    for warm in (cold.threshold * 0.9, cold.threshold, cold.threshold * 1.1, 1e30):
        assert torch.equal(SELECTOR.select(accumulated, 0.01, warm).indices, cold.indices)


def test_an_empty_tensor_gives_an_empty_selection():
    selection = SELECTOR.select(torch.empty(0), 0.5, None)
    assert (selection.indices.numel(), selection.values.numel(), selection.threshold) == (0, 0, 0.0)


@pytest.mark.parametrize("density", [0.00001, 0.01, 0.3, 0.999])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(torch.randn, id="normal"),
        pytest.param(lambda n: torch.randn(n) * (torch.arange(n) >= n - 30), id="nearly all zeros"),
        pytest.param(lambda n: torch.randint(-2, 3, (n,)).float(), id="ties"),
        pytest.param(lambda n: torch.linspace(-40, 40, n).exp(), id="eighty octaves"),
    ],
)
def test_a_first_step_that_samples_a_large_tensor_finds_exactly_the_largest(make, density):
    torch.manual_seed(0)
    accumulated = make(200_000)
    count = entries_to_keep(density, 200_000)
    selection = SELECTOR.select(accumulated, density, None)
    ordered = accumulated.abs().sort(descending=True, stable=True).indices[:count].sort().values
    assert torch.equal(selection.indices, ordered)

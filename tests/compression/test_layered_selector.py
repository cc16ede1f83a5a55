"""A layer's own threshold (method A): steered, corrected at once, never silent."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import LayeredSelector
from gradsieve.density import accepted_counts, entries_to_keep

SELECTOR = LayeredSelector((0.8, 1.25))
TIED = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, 3e38])
VALUES = st.lists(st.one_of(TIED, st.floats(-(2.0**100), 2.0**100, width=32)), min_size=1, max_size=120)
WARM = st.one_of(st.none(), st.floats(0, 2.0**127, width=32))


def noise(seed: int = 5, elements: int = 50_000) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=100)
@given(values=VALUES, density=st.floats(0.01, 1.0), warm=WARM)
def test_a_selection_is_in_the_band_or_all_there_is_and_holds_no_zeros(values, density, warm):
    accumulated = torch.tensor(values)
    before = accumulated.clone()
    selection = SELECTOR.select(accumulated, density, warm)
    fewest, most = accepted_counts(entries_to_keep(density, len(values)), len(values), SELECTOR.band)
    non_zero = int(accumulated.count_nonzero())
    kept = selection.indices.numel()
    if density < 1:
        assert bool((selection.values != 0).all())
        assert min(fewest, non_zero) <= kept <= most
    assert set(accumulated.nonzero().flatten().tolist()) <= set(selection.indices.tolist()) or kept >= fewest
    assert torch.equal(selection.values, accumulated[selection.indices])
    assert selection.indices.tolist() == sorted(set(selection.indices.tolist()))
    assert torch.equal(accumulated, before)
    smallest_kept = selection.values.abs().min() if kept else math.inf
    largest_left = accumulated.clone().index_fill_(0, selection.indices, 0).abs().max()
    assert largest_left <= smallest_kept


@pytest.mark.parametrize("warm", [None, 0.0])
def test_without_a_threshold_it_is_anchored_on_the_exact_kth_magnitude(warm):
    selection = SELECTOR.select(noise(), 0.01, warm)
    assert selection.indices.numel() == 500
    assert selection.threshold == float(noise().abs().sort(descending=True).values[499])


@pytest.mark.parametrize(("kept", "factor"), [(500, 1.0), (400, math.sqrt(0.8)), (625, math.sqrt(1.25))])
def test_within_the_band_exactly_what_reaches_the_threshold_is_sent_and_the_next_one_moves(kept, factor):
    warm = float(noise().abs().sort(descending=True).values[kept - 1])
    selection = SELECTOR.select(noise(), 0.01, warm)
    assert selection.indices.tolist() == (noise().abs() >= warm).nonzero().flatten().tolist()
    assert selection.indices.numel() == kept
    assert selection.threshold == pytest.approx(warm * factor)


@pytest.mark.parametrize("warm", [1e-45, 1e-3, 1.0, 10.0, 1e38])
def test_a_threshold_that_leaves_the_band_is_corrected_in_the_same_step(warm):
    assert 400 <= SELECTOR.select(noise(), 0.01, warm).indices.numel() <= 625


def test_few_non_zeros_let_the_threshold_fall_by_half_at_most():
    accumulated = torch.zeros(10_000)
    accumulated[7] = 4.0
    selection = SELECTOR.select(accumulated, 0.01, 4.0)
    assert selection.indices.tolist() == [7]
    assert selection.threshold == 2.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("warm", [None, 2.5])
def test_what_is_not_finite_is_among_the_values(bad, warm):
    accumulated = noise()
    accumulated[123] = bad
    assert not bool(torch.isfinite(SELECTOR.select(accumulated, 0.01, warm).values).all())

"""Sampled top-k: a threshold from a few magnitudes, re-selection where they mislead."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import SampledSelector, TopKSelector
from gradsieve.density import accepted_counts, entries_to_keep
from gradsieve.selectors.sampling import sample_indices

BAND = (0.8, 1.25)
CPU = torch.device("cpu")


def select(accumulated: torch.Tensor, density: float = 0.01, seed: int = 0):
    return SampledSelector(0.01, BAND, seed).select(accumulated, density, None)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 40_000),
    density=st.floats(0.001, 1.0),
    zeros=st.floats(0, 1),
    spread=st.floats(0, 8),
)
def test_a_selection_is_in_the_band_or_all_non_zeros_and_leaves_nothing_larger_behind(
    seed, elements, density, zeros, spread
):
    generator = torch.Generator().manual_seed(seed)
    accumulated = torch.randn(elements, generator=generator)
    accumulated *= torch.exp(spread * torch.randn(elements, generator=generator)).clamp(max=1e30)
    accumulated[torch.rand(elements, generator=generator) < zeros] = 0
    selection = select(accumulated, density)
    kept, non_zero = selection.indices.numel(), int(accumulated.count_nonzero())
    fewest, most = accepted_counts(entries_to_keep(density, elements), elements, BAND)
    assert min(fewest, non_zero) <= kept <= most
    assert torch.equal(selection.values, accumulated[selection.indices])
    left = accumulated.clone().index_fill_(0, selection.indices, 0).abs().max()
    assert kept == 0 or left <= selection.values.abs().min()
    assert bool((selection.indices[1:] > selection.indices[:-1]).all())


def test_the_same_tensor_gives_the_same_selection_and_another_seed_another_sample():
    accumulated = torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    first, again, other = select(accumulated), select(accumulated), select(accumulated, seed=1)
    assert torch.equal(first.indices, again.indices)
    assert first.threshold == again.threshold != other.threshold


def test_large_magnitudes_at_the_end_are_found_too():
    """Keeping the first k by position would miss them."""
    accumulated = torch.arange(1.0, 100_001.0)
    accumulated[sample_indices(100_000, 3_200, 0, CPU)] = 1.0  # all that is looked at
    selection = select(accumulated)
    assert torch.equal(selection.indices, TopKSelector().select(accumulated, 0.01, None).indices)


def test_a_sample_that_saw_only_the_largest_is_corrected_downwards():
    accumulated = torch.full((100_000,), 1e-3)
    accumulated[50_000:51_000] = 0.5
    accumulated[sample_indices(100_000, 3_200, 0, CPU)[:100]] = 1e6
    assert 800 <= select(accumulated).indices.numel() <= 1250


@given(elements=st.integers(1, 10**6), fraction=st.floats(0.001, 1), seed=st.integers(0, 10**9))
@settings(max_examples=40)
def test_the_sample_has_one_place_in_each_stretch(elements, fraction, seed):
    sampled = max(1, int(elements * fraction))
    places = sample_indices(elements, sampled, seed, CPU)
    stretch = elements // sampled
    assert torch.equal(places // stretch, torch.arange(sampled))
    assert int(places.max()) < elements


def test_the_places_within_the_stretches_are_spread_evenly():
    offsets = sample_indices(10**7, 10**4, 3, CPU) % 1000
    # 10 000 uniform draws: the mean's standard deviation is 2.9, a tenth's share has one of 30
    assert abs(float(offsets.double().mean()) - 499.5) < 15
    assert all(abs(int((offsets // 100 == tenth).sum()) - 1000) < 150 for tenth in range(10))


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_what_is_not_finite_is_among_the_values(bad):
    accumulated = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    accumulated[99_999] = bad
    assert not bool(torch.isfinite(select(accumulated).values).all())

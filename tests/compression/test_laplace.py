"""Laplace threshold (method E): one threshold, as many entries as the band allows."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression, LaplaceSelector
from gradsieve.density import entries_to_keep

SELECTOR = LaplaceSelector((0.8, 1.25))
TIED = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, 3e38])
VALUES = st.lists(st.one_of(TIED, st.floats(-(2.0**100), 2.0**100, width=32)), min_size=1, max_size=120)
WARM = st.one_of(st.none(), st.floats(0, 2.0**127, width=32))


def band(count: int) -> tuple[int, int]:
    return math.ceil(Fraction("0.8") * count), math.floor(Fraction("1.25") * count)


@settings(max_examples=50)
@given(values=VALUES, density=st.floats(0.01, 0.99), warm=WARM)
def test_the_number_kept_is_in_the_band_whenever_there_are_enough_non_zeros(values, density, warm):
    accumulated = torch.tensor(values)
    selection = SELECTOR.select(accumulated, density, warm)
    fewest, most = band(entries_to_keep(density, len(values)))
    non_zero = int(accumulated.count_nonzero())
    if non_zero < fewest:
        assert selection.indices.numel() == non_zero
    else:
        assert fewest <= selection.indices.numel() <= most


@settings(max_examples=50)
@given(values=VALUES, density=st.floats(0.01, 0.99), warm=WARM)
def test_all_above_the_threshold_are_kept_and_of_those_at_it_the_first(values, density, warm):
    accumulated = torch.tensor(values)
    before = accumulated.clone()
    selection = SELECTOR.select(accumulated, density, warm)
    magnitudes = accumulated.abs().tolist()
    kept = set(selection.indices.tolist())
    assert {i for i, magnitude in enumerate(magnitudes) if magnitude > selection.threshold} <= kept
    at = [i for i, magnitude in enumerate(magnitudes) if 0 < magnitude == selection.threshold]
    assert [i in kept for i in at] == sorted((i in kept for i in at), reverse=True)
    assert all(magnitudes[i] >= selection.threshold and magnitudes[i] > 0 for i in kept)
    assert selection.indices.tolist() == sorted(kept)
    assert torch.equal(selection.values, accumulated[selection.indices])
    assert torch.equal(accumulated, before)


@pytest.mark.parametrize("warm", [None, 0.5, 1e-45, 3e38])
def test_equal_magnitudes_give_exactly_k_from_the_lowest_index_on(warm):
    selection = SELECTOR.select(torch.full((1000,), -0.25), 0.01, warm)
    assert selection.indices.tolist() == list(range(10))
    assert selection.threshold == 0.25


@pytest.mark.parametrize("warm", [None, 1e-3, 1e30])
def test_a_tensor_of_zeros_gives_an_empty_selection(warm):
    selection = SELECTOR.select(torch.zeros(1000), 0.01, warm)
    assert selection.indices.numel() == 0
    assert selection.threshold == 0.0


def test_a_warm_threshold_that_the_band_accepts_is_kept():
    accumulated = torch.randn(50_000, generator=torch.Generator().manual_seed(5))
    nearby = float(accumulated.abs().sort(descending=True).values[550])
    selection = SELECTOR.select(accumulated, 0.01, nearby)
    assert selection.threshold == nearby
    assert selection.indices.numel() == 551


@pytest.mark.parametrize("warm", [1e-45, 1e-20, 1.0, 1e20, 3.4e38])
def test_a_warm_threshold_that_is_far_off_still_ends_in_the_band(warm):
    accumulated = torch.randn(50_000, generator=torch.Generator().manual_seed(6))
    assert 400 <= SELECTOR.select(accumulated, 0.01, warm).indices.numel() <= 625


def test_the_first_estimate_is_the_laplace_maximum_likelihood_threshold():
    uniform = torch.rand(100_000, generator=torch.Generator().manual_seed(7)).clamp_(1e-6, 1 - 1e-6)
    laplacian = -(0.5 - uniform).sign() * (1 - 2 * (0.5 - uniform).abs()).log()
    selection = SELECTOR.select(laplacian, 0.01, None)
    expected = float(laplacian.double().abs().mean()) * math.log(100)
    assert selection.threshold == pytest.approx(expected, rel=1e-6)


def test_training_steps_stay_in_the_band_while_gradients_grow_and_shrink():
    layer = SoleTensor(Compression.laplace(0.01), 20_000)
    generator = torch.Generator().manual_seed(8)
    for step, scale in enumerate([1.0, 1.0, 1e3, 1e3, 1e-4, 1e-4, 1.0]):
        layer.compress(scale * torch.randn(20_000, generator=generator), step=step)
        layer.commit()
        assert 160 <= layer.kept <= 250


def test_a_wider_band_lets_more_pass():
    accumulated = torch.arange(1.0, 1001.0)
    warm = float(accumulated[-30])
    assert LaplaceSelector((0.5, 4.0)).select(accumulated, 0.01, warm).indices.numel() == 30
    assert SELECTOR.select(accumulated, 0.01, warm).indices.numel() <= 12

"""Gradients that come again without a backward pass are the exchanged ones if all ranks hold the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.engine.second_synchronize import are_new, digest_of

SIZES = st.lists(st.integers(1, 9000), min_size=1, max_size=3)
SEEDS = st.integers(0, 1000)


def gradients(sizes: list[int], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


@given(SIZES, SEEDS, st.floats(-100, 100))
def test_the_same_on_all_ranks_up_to_rounding_is_what_was_exchanged(
    sizes: list[int], seed: int, factor: float
) -> None:
    ranks = [
        digest_of([g * (factor * (1 + 1e-6 * rank)) for g in gradients(sizes, seed)], replaced=True)
        for rank in range(3)
    ]
    assert not are_new(ranks, refused=False)


@given(SIZES, SEEDS)
def test_one_rank_with_other_gradients_makes_them_new(sizes: list[int], seed: int) -> None:
    ranks = [digest_of(gradients(sizes, seed + (rank == 2)), replaced=rank == 0) for rank in range(3)]
    assert are_new(ranks, refused=False)


@given(st.permutations(range(5)), SEEDS)
def test_permuted_elements_are_other_gradients(order: list[int], seed: int) -> None:
    """Norms and sums alone would not tell them apart."""
    (gradient,) = gradients([5], seed)
    ranks = [digest_of([gradient], replaced=True), digest_of([gradient[order]], replaced=True)]
    assert are_new(ranks, refused=False) == (order != list(range(5)))


@given(SIZES, SEEDS)
def test_changes_in_place_are_nobodys_business(sizes: list[int], seed: int) -> None:
    ranks = [digest_of(gradients(sizes, seed + rank), replaced=False) for rank in range(3)]
    assert not are_new(ranks, refused=False)


@pytest.mark.parametrize("replaced", [False, True])
def test_after_a_refusal_finite_gradients_are_new_even_where_all_ranks_hold_the_same(replaced: bool) -> None:
    finite = digest_of([torch.ones(10)], replaced)
    still_bad = digest_of([torch.full((10,), torch.nan)], replaced)
    assert are_new([finite, finite], refused=True)
    assert not are_new([finite, still_bad], refused=True)


def test_what_a_loss_scaler_must_see_is_not_compared() -> None:
    infinite = digest_of([torch.tensor([torch.inf, 1.0])], replaced=True)
    assert not are_new([infinite, infinite], refused=False)
    assert are_new([infinite, digest_of([torch.ones(2)], replaced=True)], refused=False)


def test_gradients_are_not_mutated_and_may_have_any_type_and_strides() -> None:
    grid = torch.arange(12.0).reshape(3, 4).t()
    before = grid.clone()
    first = digest_of([grid, torch.ones(3, dtype=torch.bfloat16)], replaced=False)
    second = digest_of([grid.contiguous(), torch.ones(3, dtype=torch.float64)], replaced=False)
    assert torch.equal(grid, before)
    assert replace(first, replaced=True) == replace(second, replaced=True)

"""Entries of several tensors that lie one after the other: cut apart, nothing is lost or moved."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.sparse_gradient import SparseGradient


@st.composite
def cut(draw: st.DrawFn) -> tuple[SparseGradient, list[int]]:
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    places = draw(st.sets(st.integers(0, max(sum(sizes) - 1, 0)), max_size=sum(sizes)))
    indices = torch.tensor(sorted(places), dtype=torch.int64)
    values = torch.tensor([float(place + 1) for place in sorted(places)])
    return SparseGradient(sum(sizes), indices, values), sizes


@given(cut())
def test_parts_of_a_gradient_are_those_of_the_whole_tensor(drawn: tuple[SparseGradient, list[int]]) -> None:
    gradient, sizes = drawn
    parts = gradient.split(sizes)
    for part, whole in zip(parts, gradient.dense().split(sizes), strict=True):
        assert torch.equal(part.dense(), whole)


@given(cut(), st.sampled_from([1.0, -0.5, 0.25]))
def test_adding_entries_into_a_tensor_is_adding_the_whole(
    drawn: tuple[SparseGradient, list[int]], alpha: float
) -> None:
    gradient, _ = drawn
    contiguous, strided = torch.ones(gradient.elements), torch.ones(gradient.elements, 2)[:, 0]
    gradient.add_into(contiguous, alpha)
    gradient.add_into(strided, alpha)
    assert torch.equal(contiguous, 1 + alpha * gradient.dense())
    assert torch.equal(strided, contiguous)


@given(cut())
def test_the_largest_magnitude_is_that_of_the_whole_tensor(drawn: tuple[SparseGradient, list[int]]) -> None:
    gradient, _ = drawn
    assert gradient.largest == max(gradient.dense().abs().tolist(), default=0.0)

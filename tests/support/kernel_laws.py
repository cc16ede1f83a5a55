"""Numbers that kernels are tried on, and what it means that two of them agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import strategies as st

from gradsieve import Selection
from gradsieve.kernels import parts

TIED = [0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38]
NUMBER = st.one_of(st.sampled_from(TIED), st.floats(-(2.0**126), 2.0**126, width=32))
WARM = st.one_of(st.none(), st.floats(0, 2.0**127, width=32))
DENSITY = st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0])
SCALE = st.sampled_from([1.0, 0.5, 2.0**-16, 3.0, 1 / 3])


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Use that many threads, for tensors and selections of any size."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "_PER_PART", 64)
            patch.setattr(parts, "_ENTRIES_PER_PART", 8)
            yield
    finally:
        torch.set_num_threads(before)


@st.composite
def numbers(draw, length: int) -> torch.Tensor:
    """Return fp32 [length]: a drawn pattern, repeated, with drawn numbers in a few places."""
    pattern = draw(st.lists(NUMBER, min_size=1, max_size=24))
    values = torch.tensor(pattern).repeat(-(-length // len(pattern)))[:length].clone()
    for place, number in draw(st.lists(st.tuples(st.integers(0, max(length - 1, 0)), NUMBER), max_size=12)):
        if length:
            values[place] = number
    return values


@st.composite
def steps(draw, lengths: st.SearchStrategy[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient and a residual of the same length."""
    length = draw(lengths)
    return draw(numbers(length)), draw(numbers(length))


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))


def agree(first: Selection, second: Selection) -> bool:
    return (
        torch.equal(first.indices, second.indices)
        and same_bits(first.values, second.values)
        and first.threshold == second.threshold
    )

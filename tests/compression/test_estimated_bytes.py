"""What a payload is estimated at is about what it takes."""

from functools import cache

import numpy as np
import pytest
import torch

from gradsieve import Selection, encode
from gradsieve.codec import estimated_bytes, rice
from gradsieve.codec.estimate import index_bytes
from gradsieve.codec.header import IndexCoding
from gradsieve.codec.indices import plan_indices

VALUE_DTYPES = ["float32", "float16", "bfloat16", "int8", "int4", "int2"]
ELEMENTS = 300_000


@cache
def largest(count: int, elements: int = ELEMENTS) -> Selection:
    """The largest of Laplace-distributed values."""
    torch.manual_seed(count)
    values = torch.distributions.Laplace(0.0, 1.0).sample((elements,))
    indices = values.abs().topk(count).indices.sort().values
    return Selection(indices, values[indices], 0.0)


@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
@pytest.mark.parametrize("density", [0.0001, 0.001, 0.01, 0.1, 0.3])
def test_it_is_near_what_is_really_encoded(value_dtype, density):
    count = int(density * ELEMENTS)
    selection = largest(count)
    # How well exponents pack depends on where the threshold lies between two powers of two.
    sizes = [
        encode(Selection(selection.indices, selection.values * scale, 0.0), ELEMENTS, value_dtype).numel()
        for scale in (1.0, 1.19, 1.41, 1.68)
    ]
    # Some ten bytes are the scatter of a payload of thirty entries.
    assert estimated_bytes(ELEMENTS, count, value_dtype) == pytest.approx(sum(sizes) / 4, rel=0.05, abs=12)


@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
def test_all_values_are_sent_without_positions(value_dtype):
    real = encode(largest(5000, 5000), 5000, value_dtype).numel()
    assert estimated_bytes(5000, 5000, value_dtype) == pytest.approx(real, rel=0.07)


@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
def test_an_empty_selection_is_a_header_and_a_checksum(value_dtype):
    nothing = Selection(torch.empty(0, dtype=torch.int64), torch.empty(0), 0.0)
    assert estimated_bytes(5000, 0, value_dtype) == pytest.approx(
        encode(nothing, 5000, value_dtype).numel(), abs=4
    )


@pytest.mark.parametrize("density", [0.0001, 0.001, 0.01, 0.1, 0.5])
def test_each_coding_of_positions_is_estimated_by_itself(density):
    count = int(density * ELEMENTS)
    indices = torch.randperm(ELEMENTS, generator=torch.Generator().manual_seed(1))[:count].sort().values
    gaps = (torch.diff(indices, prepend=torch.tensor([-1])) - 1).numpy().astype(np.uint32)
    estimated = index_bytes(ELEMENTS, count)
    assert estimated[IndexCoding.DELTA] == pytest.approx(count + int((gaps // 255).sum()), rel=0.1)
    parameters = np.empty(-(-count // rice.BLOCK), np.uint8)
    assert estimated[IndexCoding.RICE] == pytest.approx(rice.plan(gaps, parameters), rel=0.02, abs=3)
    smallest = plan_indices(indices.numpy(), ELEMENTS)
    assert min(estimated, key=estimated.__getitem__) is smallest.coding
    assert estimated[smallest.coding] == pytest.approx(smallest.size, rel=0.02, abs=3)


@pytest.mark.parametrize("count", [-1, 11])
def test_a_count_that_cannot_be_is_refused(count):
    with pytest.raises(ValueError, match="expected 0 to 10"):
        estimated_bytes(10, count, "float32")

"""At density 1 compression must be no compression at all."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

import gradsieve

MAKERS = [
    gradsieve.Compression.topk,
    gradsieve.Compression.group_topk,
    gradsieve.Compression.laplace,
    gradsieve.Compression.sampled,
    functools.partial(gradsieve.Compression.layered, bounds=(0.001, 1.0)),
    functools.partial(gradsieve.Compression.importance, bounds=(0.001, 1.0), loss_power=0),
]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=50)
@given(values=st.lists(FINITE, max_size=60))
def test_every_value_arrives_exactly_and_nothing_is_left(make, values):
    gradient = torch.tensor(values)
    layer = SoleTensor(make(density=1.0), len(values))
    for step in range(2):
        total = torch.zeros(len(values))
        gradsieve.decode(layer.compress(gradient, step=step), len(values)).add_into(total)
        layer.commit()
        assert torch.equal(total, gradient)
    assert not layer.state_dict()["feedback"]["residual"].any()


@pytest.mark.parametrize("make", MAKERS)
def test_the_payload_is_dense(make):
    layer = SoleTensor(make(density=1.0), 500)
    payload = layer.compress(torch.arange(1.0, 501.0), step=0)
    assert payload[5] == 0  # the index coding
    assert payload.numel() <= 20 + 4 * 500
    assert gradsieve.decode(payload, 500).indices is None
    assert layer.kept == 500


@pytest.mark.parametrize("make", MAKERS)
def test_a_threshold_from_a_lower_density_holds_nothing_back(make):
    gradient = torch.arange(1.0, 1001.0)
    assert make().selector().select(gradient, 1.0, previous_threshold=150.0).indices.numel() == 1000

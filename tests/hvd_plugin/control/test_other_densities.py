"""What other densities would cost in bytes, against what the codecs make of gradients."""

import pytest
import torch

from gradsieve.codec import encode_rounded
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.control.other_densities import FACTORS, received_at_other_densities
from gradsieve_hvd.engine.statistics import StepStatistics

ELEMENTS = 200_000


def payload_bytes(density):
    """Return what the largest entries of a gradient take."""
    values = torch.distributions.Laplace(0.0, 1.0).sample((ELEMENTS,))
    indices = values.abs().topk(round(density * ELEMENTS)).indices.sort().values
    payload, _ = encode_rounded(SparseGradient(ELEMENTS, indices, values[indices]), "float32")
    return len(payload)


def sent(kept, elements=ELEMENTS):
    return StepStatistics(payload_bytes=1000, kept=kept, elements=elements)


@pytest.mark.parametrize("density", [0.002, 0.01, 0.05])
def test_bytes_follow_the_codecs_and_not_only_the_entries(density):
    torch.manual_seed(0)
    now = payload_bytes(density)
    found = {
        each["factor"]: each["receivedBytesPerStep"]
        for each in received_at_other_densities(now, sent(round(density * ELEMENTS)))
    }
    assert found[1.0] == now
    for factor in (0.25, 4.0):
        true = payload_bytes(factor * density)
        assert found[factor] == pytest.approx(true, rel=0.03)
        assert abs(found[factor] - true) < abs(factor * now - true), "a straight line is further off"


def test_the_last_density_is_the_whole_gradient():
    found = received_at_other_densities(50_000, sent(ELEMENTS // 10))
    assert found[-1]["factor"] == pytest.approx(10.0)
    factors = [each["factor"] for each in found]
    assert factors == sorted(set(factors))
    sizes = [each["receivedBytesPerStep"] for each in found]
    assert sizes == sorted(sizes)


def test_of_few_entries_what_would_be_none_is_left_out():
    found = received_at_other_densities(100, sent(8, elements=100_000))
    assert found[0]["factor"] >= 1 / 8
    assert {1.0, FACTORS[-1]} <= {each["factor"] for each in found}


@pytest.mark.parametrize(
    ("received", "statistics"),
    [
        (0, sent(100)),
        (1000, StepStatistics()),
        (1000, sent(0)),
    ],
    ids=["nobody tells", "nothing is compressed", "nothing was selected"],
)
def test_where_nothing_is_known_nothing_is_told(received, statistics):
    assert received_at_other_densities(received, statistics) == []

"""What a release makes of the gradients that it is given, for one tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.codec import decode, encode_all
from gradsieve_hvd.server.ledger import Ledger
from gradsieve_hvd.server.partition import Partition
from gradsieve_hvd.server.release import Given, combine

WEIGHTS = (1.0, 0.5, 0.25)  # exact


def payload(values):
    return decode(encode_all(torch.tensor(values, dtype=torch.float32), "float32"), len(values))


def given_of(*each):
    return [Given(payload(values), weight, gated) for values, weight, gated in each]


def test_a_late_gradient_that_opposes_the_fresh_sum_is_dropped_entry_by_entry():
    combined = combine(given_of(([1, -2, 0, 3], 1.0, False), ([4, 4, -4, -8], 0.5, True)), 4)
    assert combined.applied.tolist() == [3, -2, -2, 3]
    assert combined.gated.tolist() == [0, 4, 0, -8]
    assert combined.damped.tolist() == [2, 0, -2, 0]


def test_late_gradients_do_not_gate_each_other():
    combined = combine(given_of(([1], 1.0, True), ([-4], 0.5, True)), 1)
    assert combined.applied.tolist() == [-1]
    assert combined.gated.tolist() == [0]


@st.composite
def releases(draw):
    elements = draw(st.integers(1, 6))
    values = st.lists(st.integers(-1000, 1000), min_size=elements, max_size=elements)
    one = st.tuples(values, st.sampled_from(WEIGHTS), st.booleans())
    return elements, draw(st.lists(one, min_size=1, max_size=5))


@given(releases())
def test_what_was_given_is_applied_or_gated_or_damped(release):
    elements, each = release
    combined = combine(given_of(*each), elements)
    total = torch.tensor([values for values, _, _ in each]).sum(dim=0)
    assert torch.equal(combined.applied + combined.gated + combined.damped, total.float())


@given(releases())
def test_a_ledger_adds_up(release):
    elements, each = release
    ledger = Ledger()
    arrived = given_of(*each)
    for one in arrived:
        ledger.arrived(one.payload)
    ledger.combined(combine(arrived[1:], elements))
    ledger.dropped(arrived[0].payload)
    assert ledger.given == ledger.applied + ledger.gated + ledger.damped + ledger.discarded


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 8))
def test_no_shard_has_more_than_a_tensor_above_the_least(sizes, ranks):
    partition = Partition.balanced(sizes, range(ranks))
    load = [sum(sizes[number] for number in partition.of_shard(rank)) for rank in range(ranks)]
    assert sum(load) == sum(sizes)
    assert max(load) - min(load) <= max(sizes, default=0)


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_tensor_has_one_owner(ranks):
    partition = Partition.balanced([5, 5, 1, 9], range(ranks))
    owned = [number for rank in range(ranks) for number in partition.of_shard(rank)]
    assert sorted(owned) == [0, 1, 2, 3]
    assert partition.shards == set(range(ranks))

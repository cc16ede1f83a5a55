"""Weights on their way to a worker: only what has changed, and the same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import PayloadError
from gradsieve_hvd.server.changes import Changes
from gradsieve_hvd.server.reply import packed_weights, unpacked_weights

ELEMENTS = 40


@st.composite
def histories(draw):
    """Versions of a tensor, of which each changes some entries."""
    changed = st.lists(st.integers(0, ELEMENTS - 1), max_size=ELEMENTS, unique=True)
    values = st.floats(-1e3, 1e3, width=16)
    versions = [torch.zeros(ELEMENTS)]
    for places in draw(st.lists(changed, min_size=1, max_size=8)):
        made = versions[-1].clone()
        for place in places:
            made[place] = draw(values)
        versions.append(made)
    return versions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@given(histories())
def test_whoever_has_an_older_version_gets_the_bits_of_the_newest(dtype, versions):
    held = [each.to(dtype) for each in versions]
    changes = Changes(ELEMENTS)
    for version in range(1, len(held)):
        changes.note(version, held[version - 1], held[version])
    for base, present in enumerate(held):
        packed, whole = packed_weights(held[-1], changes.since(base))
        made = present.clone()
        unpacked_weights(packed, made, whole=whole).put_into(made)
        assert torch.equal(made.view(torch.uint8), held[-1].view(torch.uint8))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("changed", [None, torch.tensor([3, 20])])
def test_new_weights_overwrite_what_has_changed_wherever_it_lies(strided, changed):
    parameter = torch.zeros(6, 4).t() if strided else torch.zeros(4, 6)
    new = torch.arange(24.0).view(4, 6)
    packed, whole = packed_weights(new, changed)
    unpacked_weights(packed, parameter, whole=whole).put_into(parameter)
    expected = new if changed is None else torch.where(torch.isin(new, changed), new, 0.0)
    assert torch.equal(parameter, expected)


def test_few_changed_entries_take_few_bytes():
    before, after = torch.zeros(10_000), torch.zeros(10_000)
    after[::1000] = 1.5
    changes = Changes(10_000)
    changes.note(1, before, after)
    packed, whole = packed_weights(after, changes.since(0))
    assert not whole
    assert packed.numel() < 120
    assert packed_weights(after, changes.since(1))[0].numel() < 60


def test_where_most_entries_change_all_are_sent_and_nothing_is_remembered():
    changes = Changes(100)
    changes.note(1, torch.zeros(100), torch.ones(100))
    assert changes.since(0) is None
    assert changes._last_N is None
    assert changes.since(1).numel() == 0


def test_weights_that_are_not_finite_are_sent_as_they_are():
    weights = torch.tensor([1.0, float("nan"), 2.0])
    packed, whole = packed_weights(weights, torch.tensor([1]))
    assert whole
    assert torch.equal(
        unpacked_weights(packed, torch.zeros(3), whole=True).values.view(torch.int32),
        weights.view(torch.int32),
    )


def test_weights_of_another_size_are_refused():
    packed, _ = packed_weights(torch.ones(4), None)
    with pytest.raises(PayloadError, match="found 16 bytes of weights, expected 12"):
        unpacked_weights(packed, torch.zeros(3), whole=True)
    packed, _ = packed_weights(torch.ones(4), torch.tensor([1]))
    with pytest.raises(PayloadError):
        unpacked_weights(packed, torch.zeros(3), whole=False)

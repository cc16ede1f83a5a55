"""Encoding and decoding are inverse, in the smallest of the codings, at any alignment and size."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import (
    PayloadError,
    Refusal,
    Selection,
    TopKSelector,
    decode,
    encode,
    encode_refusal,
    sent_values,
    split,
)

DTYPES = ["float32", "float16", "bfloat16"]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def selection(indices: list[int], values: list[float]) -> Selection:
    return Selection(torch.tensor(indices, dtype=torch.int64), torch.tensor(values, dtype=torch.float32), 0.0)


def dense(chosen: Selection, elements: int) -> torch.Tensor:
    return torch.zeros(elements).index_copy_(0, chosen.indices, chosen.values)


@settings(max_examples=50, deadline=None)
@given(
    entries=st.dictionaries(st.one_of(st.integers(0, 300), st.integers(0, 150_000)), FINITE, max_size=60),
    beyond=st.integers(1, 70_000),
    value_dtype=st.sampled_from(DTYPES),
    epoch=st.integers(0, 2**32 - 1),
)
def test_what_comes_out_is_what_went_in_rounded_to_the_value_dtype(entries, beyond, value_dtype, epoch):
    indices = sorted(entries)
    elements = max(indices, default=0) + beyond
    chosen = selection(indices, [entries[index] for index in indices])
    payload = encode(chosen, elements, value_dtype, epoch)
    assert (payload.dtype, payload.device.type, payload.is_contiguous()) == (torch.uint8, "cpu", True)
    decoded = decode(payload, elements)
    assert (decoded.elements, decoded.epoch, decoded.refused) == (elements, epoch, False)
    total = torch.zeros(elements)
    decoded.add_into(total)
    sent = Selection(chosen.indices, sent_values(chosen.values, value_dtype), 0.0)
    assert torch.equal(total, dense(sent, elements))
    if decoded.indices is not None:
        assert decoded.indices.tolist() == indices
        assert decoded.indices.dtype == torch.int64


@settings(max_examples=50, deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=40), value_dtype=st.sampled_from(DTYPES))
def test_values_are_rounded_to_nearest_and_stay_finite(values, value_dtype):
    given_ = torch.tensor(values)
    before = given_.clone()
    sent = sent_values(given_, value_dtype)
    kind = getattr(torch, value_dtype)
    largest = torch.finfo(kind).max
    assert sent.dtype == torch.float32
    assert bool(torch.isfinite(sent).all())
    assert torch.equal(sent, given_.clamp(-largest, largest).to(kind).float())
    assert torch.equal(given_, before)


@pytest.mark.parametrize(
    ("indices", "elements", "index_bytes"),
    [
        pytest.param(list(range(100)), 100, 0, id="all: dense"),
        pytest.param(list(range(0, 100, 2)), 10_000, 50, id="near each other: delta"),
        pytest.param(list(range(0, 1_000_000, 5000)), 1_000_000, 2 * (16 + 200), id="far apart: group16"),
        pytest.param(
            [*range(65_536), 10_000_000], 10_000_001, 65_537 + 9_934_464 // 255, id="a full group: delta"
        ),
        pytest.param(
            [*range(1, 65_536), 10_000_000], 10_000_001, 65_536 + 9_934_464 // 255, id="nearly full: delta"
        ),
    ],
)
def test_the_smallest_coding_is_chosen(indices, elements, index_bytes):
    chosen = Selection(torch.tensor(indices), torch.ones(len(indices)), 0.0)
    payload = encode(chosen, elements, "float32")
    assert payload.numel() == 40 + 4 * len(indices) + index_bytes
    decoded = decode(payload, elements)
    assert decoded.indices is None or decoded.indices.tolist() == indices


@pytest.mark.parametrize(
    ("shift", "index_bytes"),
    [
        pytest.param(0, 65_935 + (399_000_000 - 65_935) // 255, id="a full group: gaps"),
        pytest.param(1, 2 * (6104 + 65_935), id="as many in a row across two groups: groups"),
    ],
)
def test_only_a_full_group_keeps_groups_from_being_used(shift, index_bytes):
    indices = torch.cat([torch.arange(65_536) + shift, torch.arange(1, 400) * 1_000_000])
    elements = 400_000_000
    payload = encode(Selection(indices, torch.ones(indices.numel()), 0.0), elements, "float32")
    assert payload.numel() - 40 - 4 * indices.numel() == pytest.approx(index_bytes, rel=1e-3)
    decoded = decode(payload, elements)
    assert decoded.indices is not None
    assert torch.equal(decoded.indices, indices)


@pytest.mark.parametrize("elements", [100_000, 1_000_000])
def test_one_percent_costs_at_most_five_point_three_bytes_per_entry(elements):
    accumulated = torch.randn(elements, generator=torch.Generator().manual_seed(2))
    chosen = TopKSelector().select(accumulated, 0.01, None)
    assert encode(chosen, elements, "float32").numel() <= 5.3 * chosen.indices.numel()


@pytest.mark.parametrize("base", [2**24, 2**31, 2**32], ids=["2^24", "2^31", "2^32"])
@pytest.mark.parametrize("spacing", [1, 70_000])
def test_positions_beyond_single_and_integer_precision_are_exact(base, spacing):
    indices = [0, *(base - 1 + spacing * i for i in range(2000))]
    elements = indices[-1] + 1
    decoded = decode(
        encode(selection(indices, [float(i) for i in range(2001)]), elements, "float32"), elements
    )
    assert decoded.indices is not None
    assert decoded.indices.tolist() == indices
    assert decoded.values.tolist() == [float(i) for i in range(2001)]


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 999), unique=True, max_size=8), min_size=1, max_size=6),
    value_dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 7),
)
def test_concatenated_payloads_are_cut_apart_at_any_alignment(parts, value_dtype, offset):
    chosen = [selection(sorted(part), [index + 0.5 for index in sorted(part)]) for part in parts]
    payloads = [encode(part, 1000, value_dtype) for part in chosen] + [encode_refusal(1000)]
    buffer = torch.cat([torch.zeros(offset, dtype=torch.uint8), *payloads])[offset:]
    decoded = split(buffer, len(payloads), 1000)
    assert [payload.refused for payload in decoded] == [False] * len(parts) + [True]
    for before, after in zip(payloads[:-1], decoded[:-1], strict=True):
        alone = decode(before, 1000)
        assert torch.equal(alone.values, after.values)
        assert alone.indices is not None
        assert after.indices is not None
        assert torch.equal(alone.indices, after.indices)


def test_a_decoded_payload_does_not_share_the_buffer():
    buffer = encode(selection([3], [2.0]), 100, "float32")
    decoded = decode(buffer, 100)
    buffer.zero_()
    assert decoded.values.tolist() == [2.0]
    assert decoded.indices is not None
    assert decoded.indices.tolist() == [3]


@pytest.mark.parametrize("elements", [4, 400], ids=["dense", "sparse"])
def test_adding_scales_and_accumulates(elements):
    decoded = decode(encode(selection([0, 1, 3], [1.0, 2.0, -4.0]), elements, "float32"), elements)
    total = torch.ones(elements)
    decoded.add_into(total, alpha=0.5)
    decoded.add_into(total)
    assert total[:4].tolist() == [2.5, 4.0, 1.0, -5.0]
    assert bool((total[4:] == 1).all())


def test_a_refusal_carries_its_reason_and_adds_nothing():
    decoded = decode(encode_refusal(5, Refusal.NON_FINITE, epoch=3), 5)
    assert (decoded.refused, decoded.refusal, decoded.count, decoded.epoch) == (
        True,
        Refusal.NON_FINITE,
        0,
        3,
    )
    total = torch.ones(5)
    decoded.add_into(total)
    assert total.tolist() == [1.0] * 5


@pytest.mark.parametrize(
    "total",
    [torch.ones(99), torch.ones(100, 1), torch.ones(100, dtype=torch.float64)],
    ids=["size", "shape", "dtype"],
)
@pytest.mark.parametrize("payload", [encode_refusal(100), encode(selection([3], [2.0]), 100, "float32")])
def test_a_target_that_does_not_fit_is_refused_and_left_alone(total, payload):
    before = total.clone()
    with pytest.raises(PayloadError, match=r"expected torch\.float32 \[100\]"):
        decode(payload, 100).add_into(total)
    assert torch.equal(total, before)


def test_the_delta_size_per_position_at_one_percent_is_that_of_the_document():
    generator = torch.Generator().manual_seed(9)
    elements = 1_000_000
    indices = torch.randperm(elements, generator=generator)[: elements // 100].sort().values
    payload = encode(Selection(indices, torch.ones(indices.numel()), 0.0), elements, "float32")
    expected = 1 + math.pow(0.99, 255) / (1 - math.pow(0.99, 255))
    assert (payload.numel() - 40) / indices.numel() - 4 == pytest.approx(expected, abs=0.02)

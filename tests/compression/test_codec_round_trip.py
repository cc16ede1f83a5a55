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
from gradsieve.codec.indices import plan_indices

FLOATS = ["float32", "float16", "bfloat16"]
DTYPES = [*FLOATS, "int8", "int4", "int2"]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def selection(indices: list[int], values: list[float]) -> Selection:
    return Selection(torch.tensor(indices, dtype=torch.int64), torch.tensor(values, dtype=torch.float32), 0.0)


def dense(chosen: Selection, elements: int) -> torch.Tensor:
    return torch.zeros(elements).index_copy_(0, chosen.indices, chosen.values)


def patterns(values: torch.Tensor) -> torch.Tensor:
    """The bits: negative zeros differ from zeros."""
    return values.view(torch.int32)


@settings(max_examples=200)
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
    sent = Selection(chosen.indices, sent_values(chosen.values, value_dtype), 0.0)
    if decoded.indices is None:
        assert torch.equal(patterns(decoded.values), patterns(dense(sent, elements)))
    else:
        assert torch.equal(patterns(decoded.values), patterns(sent.values))
        assert decoded.indices.tolist() == indices
        assert decoded.indices.dtype == torch.int64


@pytest.mark.parametrize("value_dtype", DTYPES)
@pytest.mark.parametrize("omitted", [0, 1, 3])
def test_what_a_nearly_full_selection_leaves_out_is_read_as_zero(value_dtype, omitted):
    chosen = Selection(torch.arange(omitted, 1000), torch.linspace(5.0, 6.0, 1000 - omitted), 0.0)
    total = torch.zeros(1000)
    decode(encode(chosen, 1000, value_dtype), 1000).add_into(total)
    expected = Selection(chosen.indices, sent_values(chosen.values, value_dtype), 0.0)
    assert torch.equal(total, dense(expected, 1000))


@pytest.mark.parametrize(
    ("indices", "elements", "coding", "index_bytes"),
    [
        pytest.param(list(range(100)), 100, 0, 0, id="all: dense"),
        pytest.param([*range(128, 100_000, 250)], 100_000, 1, 400, id="gaps of one byte each: delta"),
        pytest.param([60_000], 65_536, 2, 4, id="one, far away: group16"),
        pytest.param(
            list(range(0, 1_000_000, 5000)), 1_000_000, 3, 2 + 176 + 117 + 57, id="far apart, evenly: rice"
        ),
        pytest.param(list(range(0, 100, 2)), 10_000, 3, 1 + 13, id="at the start: rice"),
        pytest.param([i for i in range(1000) if i % 7 in (0, 1, 5)], 1000, 4, 125, id="many: bitmap"),
        pytest.param([], 1000, 1, 0, id="none: delta"),
    ],
)
def test_the_smallest_coding_is_chosen(indices, elements, coding, index_bytes):
    chosen = Selection(torch.tensor(indices, dtype=torch.int64), torch.ones(len(indices)), 0.0)
    payload = encode(chosen, elements, "float32")
    assert payload[5] == coding
    assert plan_indices(chosen.indices.numpy(), elements).size == index_bytes
    decoded = decode(payload, elements)
    assert decoded.indices is None or decoded.indices.tolist() == indices


@settings(max_examples=100)
@given(
    gaps=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**20)), max_size=400),
    beyond=st.integers(0, 1000),
    value_dtype=st.sampled_from(DTYPES),
)
def test_as_many_bytes_are_written_as_were_computed_and_no_coding_of_positions_is_smaller(
    gaps, beyond, value_dtype
):
    indices = torch.tensor(gaps, dtype=torch.int64).add(1).cumsum(0) - 1
    elements = int(indices[-1]) + 1 + beyond if gaps else beyond
    values = torch.arange(1.0, len(gaps) + 1)
    plan = plan_indices(indices.numpy(), elements)
    payload = encode(Selection(indices, values, 0.0), elements, value_dtype)
    decoded = decode(payload, elements)  # raises unless all bytes are used
    assert decoded.indices is None or torch.equal(decoded.indices, indices)
    delta = len(gaps) + sum(gap // 255 for gap in gaps)
    assert plan.size <= (0 if len(gaps) == elements else min(delta, -(-elements // 8)))
    for parameter in (0, 5, 9, 12):
        blocks = [gaps[start : start + 128] for start in range(0, len(gaps), 128)]
        low = sum(-(-len(block) * parameter // 8) for block in blocks)
        unary = -(-(len(gaps) + sum(gap >> parameter for gap in gaps)) // 8)
        rounding = len(blocks)  # the best parameter is found in bits, and blocks are rounded to bytes
        assert plan.size <= len(blocks) + low + unary + rounding


@pytest.mark.parametrize("shift", [0, 1])
def test_a_full_group_and_gaps_beyond_32_bits_leave_delta_or_groups(shift):
    indices = torch.cat([torch.arange(65_536) + shift, torch.tensor([2**32 + 100_000])])
    payload = encode(Selection(indices, torch.ones(indices.numel()), 0.0), 2**32 + 100_001, "int2")
    assert payload[5] == (1 if shift == 0 else 2)
    decoded = decode(payload, 2**32 + 100_001)
    assert decoded.indices is not None
    assert torch.equal(decoded.indices, indices)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        pytest.param([1, 1], "repeated or falling", id="repeated"),
        pytest.param([2, 1], "repeated or falling", id="falling"),
        pytest.param([-1, 3], "repeated or falling", id="negative"),
        pytest.param([3, 10], "beyond", id="beyond"),
    ],
)
def test_positions_that_are_none_are_refused_when_they_are_encoded(indices, message):
    with pytest.raises(PayloadError, match=message):
        encode(Selection(torch.tensor(indices), torch.ones(2), 0.0), 10, "float32")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("value_dtype", DTYPES)
def test_values_that_are_not_finite_are_refused_when_they_are_encoded(value, value_dtype):
    with pytest.raises(PayloadError, match="found NaN or infinity"):
        encode(Selection(torch.tensor([3, 5]), torch.tensor([1.0, value]), 0.0), 10, value_dtype)


BYTES_AT_DENSITY = {  # per kept element, header included
    0.01: {"float32": 4.6, "float16": 2.9, "int4": 1.7},
    0.001: {"float32": 5.1, "float16": 3.4, "int4": 2.2},
}


@pytest.mark.parametrize("elements", [100_000, 1_000_000])
@pytest.mark.parametrize("density", [0.01, 0.001])
@pytest.mark.parametrize("value_dtype", ["float32", "float16", "int4"])
def test_an_entry_costs_no_more_than_this(elements, density, value_dtype):
    accumulated = torch.randn(elements, generator=torch.Generator().manual_seed(2))
    chosen = TopKSelector().select(accumulated, density, None)
    most = BYTES_AT_DENSITY[density][value_dtype] + (0.1 if chosen.indices.numel() < 500 else 0.0)
    assert encode(chosen, elements, value_dtype).numel() <= most * chosen.indices.numel()


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


@settings(max_examples=30)
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


def test_the_largest_magnitude_is_that_of_the_values():
    selection = Selection(torch.tensor([1, 5]), torch.tensor([2.0, -7.0]), 2.0)
    assert decode(encode(selection, 100, "float32"), 100).largest == 7.0
    assert decode(encode_refusal(100), 100).largest == 0.0


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


@pytest.mark.parametrize(("spacing", "bits"), [(100, 8.2), (1000, 11.5)])
def test_the_size_per_position_is_that_of_the_document(spacing, bits):
    generator = torch.Generator().manual_seed(9)
    elements = 10_000 * spacing
    indices = torch.randperm(elements, generator=generator)[:10_000].sort().values
    plan = plan_indices(indices.numpy(), elements)
    assert plan.size * 8 / 10_000 == pytest.approx(bits, abs=0.06)

"""Whatever arrives, decoding raises PayloadError or returns something valid; it never does anything else."""

import itertools
import struct
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import Payload, PayloadError, Selection, decode, encode, encode_refusal, split


def selection(indices: list[int]) -> Selection:
    return Selection(torch.tensor(indices, dtype=torch.int64), torch.arange(1.0, len(indices) + 1), 0.0)


GOOD = [
    pytest.param(encode(selection([0, 1, 2]), 3, "float32"), 3, id="dense"),
    pytest.param(encode(selection([3, 400, 999]), 1000, "float16"), 1000, id="delta"),
    pytest.param(encode(selection([3, 40_000, 99_999]), 100_000, "bfloat16"), 100_000, id="group16"),
    pytest.param(encode(selection([]), 1000, "float32"), 1000, id="empty"),
    pytest.param(encode_refusal(1000), 1000, id="refusal"),
]


def tensor(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def sealed(
    body: bytes = b"",
    *,
    magic: bytes = b"GRSV",
    version: int = 1,
    index_coding: int = 1,
    value_coding: int = 0,
    refusal: int = 0,
    elements: int = 1000,
    count: int = 0,
    length: int | None = None,
) -> torch.Tensor:
    """Return a payload whose length and checksum are right, whatever else is wrong with it."""
    length = 40 + len(body) if length is None else length
    start = struct.pack("<4sBBBBI", magic, version, index_coding, value_coding, refusal, 0)
    end = struct.pack("<QQQ", elements, count, length) + body
    return tensor(start + struct.pack("<I", zlib.crc32(start + end)) + end)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


@pytest.mark.parametrize(("payload", "elements"), GOOD)
def test_every_truncation_is_refused(payload, elements):
    for length in range(payload.numel()):
        with pytest.raises(PayloadError):
            decode(payload[:length], elements)
        with pytest.raises(PayloadError, match="payload 1 of 1"):
            split(payload[:length], 1, elements)


@pytest.mark.parametrize(("payload", "elements"), GOOD)
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_refused(payload, elements, flip):
    for position in range(payload.numel()):
        changed = payload.clone()
        changed[position] ^= flip
        with pytest.raises(PayloadError):
            decode(changed, elements)
        with pytest.raises(PayloadError):
            split(torch.cat([changed, payload]), 2, elements)


@pytest.mark.parametrize(("payload", "elements"), GOOD)
def test_bytes_after_the_payload_are_refused(payload, elements):
    longer = torch.cat([payload, torch.zeros(1, dtype=torch.uint8)])
    with pytest.raises(PayloadError, match="bytes follow the payload"):
        decode(longer, elements)
    with pytest.raises(PayloadError, match="found 1 bytes after 1 payloads"):
        split(longer, 1, elements)


def test_the_helper_of_the_tests_below_makes_valid_payloads():
    body = floats(1.5, 2.0) + bytes([4, 0])
    assert decode(sealed(body, count=2), 1000).indices.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param(sealed(magic=b"PK\3\4"), "'magic'.*not a gradsieve payload", id="magic"),
        pytest.param(sealed(version=2), "'version': found 2, expected 1; run the same", id="version"),
        pytest.param(
            sealed(length=39), "'length': found 39, expected 40 to the 40", id="length below the header"
        ),
        pytest.param(sealed(length=2**63), "'length'.*truncated", id="length beyond the bytes"),
        pytest.param(sealed(index_coding=3), r"'index coding': found 3.*2 \(group16\)", id="index coding"),
        pytest.param(sealed(value_coding=3), r"'value coding': found 3.*0 \(float32\)", id="value coding"),
        pytest.param(sealed(refusal=9), "'refusal': found 9", id="refusal"),
        pytest.param(
            sealed(elements=999), "'elements': found 999, expected 1000; run the same model", id="elements"
        ),
        pytest.param(sealed(count=1001), "'count': found 1001", id="count above the elements"),
        pytest.param(sealed(index_coding=0, count=5), "'count': found 5", id="dense count"),
        pytest.param(
            sealed(index_coding=0, count=1000), "'length': found 0 bytes", id="dense without values"
        ),
        pytest.param(sealed(floats(1.0), count=2), "'length': found 4 bytes", id="too few values"),
        pytest.param(sealed(floats(float("nan")) + b"\0", count=1), "'values': found NaN or inf", id="NaN"),
        pytest.param(
            sealed(floats(-float("inf")) + b"\0", count=1), "'values': found NaN or inf", id="infinity"
        ),
        pytest.param(
            sealed(words(0x7C00) + b"\0", count=1, value_coding=1), "'values': found NaN", id="half infinity"
        ),
        pytest.param(
            sealed(floats(1.0), count=1), "'indices': found 0 complete gaps", id="delta without gaps"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\0\0", count=1), "'indices': found 2", id="delta with one too many"
        ),
        pytest.param(sealed(floats(1.0) + b"\0\xff", count=1), "'indices'", id="delta with an open end"),
        pytest.param(
            sealed(floats(1.0) + b"\xff\xff\xff\xeb", count=1), "found 1000.*below 1000", id="delta beyond N"
        ),
        pytest.param(
            sealed(words(0), index_coding=2, count=0, elements=1000, length=41), "'length'", id="odd length"
        ),
        pytest.param(
            sealed(index_coding=2), "'indices': found 0 bytes, expected 2", id="group16 without counts"
        ),
        pytest.param(
            sealed(floats(1.0) + words(2, 5), index_coding=2, count=1),
            "'group counts'.*sum of 2",
            id="group counts",
        ),
        pytest.param(
            sealed(floats(1.0, 2.0) + words(2, 5, 5), index_coding=2, count=2),
            "repeated or falling",
            id="repeated",
        ),
        pytest.param(
            sealed(floats(1.0, 2.0) + words(2, 6, 5), index_coding=2, count=2),
            "repeated or falling",
            id="falling",
        ),
        pytest.param(
            sealed(floats(1.0) + words(1, 1000), index_coding=2, count=1), "found 1000", id="group16 beyond N"
        ),
        pytest.param(
            sealed(b"\0", index_coding=0, refusal=1), "'refusal'.*bare header", id="refusal with data"
        ),
        pytest.param(
            sealed(index_coding=0, refusal=1, count=3), "'refusal'.*bare header", id="refusal with a count"
        ),
        pytest.param(sealed(index_coding=1, refusal=1), "'refusal'.*bare header", id="refusal with a coding"),
    ],
)
def test_a_wrong_field_under_a_right_checksum_is_refused_by_name(payload, message):
    with pytest.raises(PayloadError, match=message):
        decode(payload, 1000)


@pytest.mark.parametrize("index_coding", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 2**40])
def test_a_header_that_claims_a_terabyte_takes_no_memory(index_coding, count):
    payload = sealed(index_coding=index_coding, elements=2**40, count=count)
    tracemalloc.start()
    try:
        if (index_coding, count) == (1, 0):
            assert decode(payload, 2**40).count == 0
        else:
            with pytest.raises(PayloadError):
                decode(payload, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_one_bad_payload_among_good_ones_spoils_the_lot_and_is_named():
    good = encode(selection([3, 400]), 1000, "float32")
    bad = good.clone()
    bad[-1] ^= 1
    with pytest.raises(PayloadError, match="payload 2 of 3: .*'checksum'"):
        split(torch.cat([good, bad, good]), 3, 1000)


def test_payloads_for_different_tensors_are_refused_even_if_no_size_is_expected():
    mixed = torch.cat([encode(selection([3]), 1000, "float32"), encode(selection([3]), 1001, "float32")])
    with pytest.raises(PayloadError, match="payload 2 of 2: .*'elements': found 1001, expected 1000"):
        split(mixed, 2)


@pytest.mark.parametrize(
    "received",
    [torch.zeros(40), torch.zeros(40, dtype=torch.int8), torch.zeros((1, 40), dtype=torch.uint8)],
    ids=["float", "int8", "matrix"],
)
def test_what_is_not_a_flat_byte_tensor_is_refused(received):
    with pytest.raises(PayloadError, match=r"a flat torch\.uint8 tensor"):
        decode(received, 1000)


def valid(payload: Payload, elements: int) -> bool:
    positions = range(elements) if payload.indices is None else payload.indices.tolist()
    rising = all(a < b for a, b in itertools.pairwise(positions))
    within = not len(positions) or (positions[0] >= 0 and positions[-1] < elements)
    fits = payload.refused or len(positions) == payload.count
    return rising and within and fits and bool(torch.isfinite(payload.values).all())


@settings(max_examples=50, deadline=None)
@given(
    body=st.binary(max_size=60),
    index_coding=st.integers(0, 3),
    value_coding=st.integers(0, 3),
    refusal=st.sampled_from([0, 0, 0, 1]),
    elements=st.sampled_from([0, 1, 5, 300, 70_000]),
    count=st.integers(0, 12),
)
def test_random_bytes_under_a_right_checksum_are_refused_or_valid(
    body, index_coding, value_coding, refusal, elements, count
):
    payload = sealed(
        body,
        index_coding=index_coding,
        value_coding=value_coding,
        refusal=refusal,
        elements=elements,
        count=count,
    )
    try:
        decoded = decode(payload, elements)
    except PayloadError:
        return
    assert valid(decoded, elements)


@given(data=st.binary(max_size=100))
def test_random_bytes_are_refused(data):
    with pytest.raises(PayloadError):
        decode(tensor(data), 10)

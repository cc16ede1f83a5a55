"""Whatever arrives, decoding raises PayloadError or returns something valid; it never does anything else."""

import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve import PayloadError, Selection, decode, encode, encode_refusal, split
from gradsieve.codec.checksum import checksum


def selection(indices: list[int]) -> Selection:
    return Selection(torch.tensor(indices, dtype=torch.int64), torch.arange(1.0, len(indices) + 1), 0.0)


def near(count: int) -> list[float]:
    """Values that pack well."""
    return [(-1) ** number * (1 + number * 37 % 101 / 128) for number in range(count)]


def made(indices: list[int], elements: int, value_dtype: str) -> torch.Tensor:
    return encode(
        Selection(torch.tensor(indices), torch.tensor(near(len(indices))), 0.0), elements, value_dtype
    )


GOOD = [
    pytest.param(encode(selection([0, 1, 2]), 3, "float32"), 3, id="dense"),
    pytest.param(made(list(range(128, 4000, 250)), 4000, "float16"), 4000, id="delta"),
    pytest.param(encode(selection([60_000]), 65_536, "bfloat16"), 65_536, id="group16"),
    pytest.param(made(list(range(0, 3000, 20)), 4000, "float32"), 4000, id="rice, packed float32"),
    pytest.param(made(list(range(0, 300, 2)), 300, "float16"), 300, id="bitmap, packed float16"),
    pytest.param(made(list(range(0, 900, 3)), 1000, "int4"), 1000, id="rice, int4"),
    pytest.param(encode(selection([]), 1000, "float32"), 1000, id="empty"),
    pytest.param(encode_refusal(1000), 1000, id="refusal"),
]


def tensor(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def variable(number: int) -> bytes:
    """Return a number in as many bytes as it needs."""
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + variable(number // 128)


def resealed(payload: bytes) -> bytes:
    """Return a payload with its checksum, the last four bytes, made right."""
    start = np.frombuffer(bytearray(payload[:-4]), np.uint8)
    return payload[:-4] + checksum(start, 0, start.size).to_bytes(4, "little")


def sealed(
    body: bytes = b"",
    *,
    magic: bytes = b"GRSV",
    version: int = 2,
    index_coding: int = 1,
    value_coding: int = 0,
    refusal: int = 0,
    epoch: int = 0,
    elements: int = 1000,
    count: int = 0,
    length: int | None = None,
) -> torch.Tensor:
    """Return a payload whose length and checksum are right, whatever else is wrong with it."""
    start = struct.pack("<4sBBBB", magic, version, index_coding, value_coding, refusal)
    numbers = (epoch, elements, count, len(body) if length is None else length)
    return tensor(resealed(start + b"".join(map(variable, numbers)) + body + bytes(4)))


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
def test_swapped_words_are_refused(payload, elements):
    for size in (1, 2, 4, 8, 32):
        for position in range(0, payload.numel() - 2 * size, size):
            changed = payload.clone()
            changed[position : position + size] = payload[position + size : position + 2 * size]
            changed[position + size : position + 2 * size] = payload[position : position + size]
            if not torch.equal(changed, payload):
                with pytest.raises(PayloadError):
                    decode(changed, elements)


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


def test_packed_int2_is_read_though_our_sender_never_packs_it():
    scales, base, parameter, quotient_3, gap = floats(0.5, 2.0), b"\0", b"\0", b"\x08", b"\4"
    decoded = decode(sealed(scales + base + parameter + quotient_3 + gap, value_coding=16 + 5, count=1), 1000)
    assert (decoded.indices.tolist(), decoded.values.tolist()) == ([4], [-2.0])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param(sealed(magic=b"PK\3\4"), "'magic'.*not a gradsieve payload", id="magic"),
        pytest.param(sealed(version=1), "'version': found 1, expected 2; run the same", id="version"),
        pytest.param(
            sealed(bytes(9), length=9 + 1),
            "'length': found 10, expected at most 9",
            id="length beyond the bytes",
        ),
        pytest.param(sealed(length=2**55), "'length'.*truncated", id="length far beyond the bytes"),
        pytest.param(
            sealed(epoch=2**56), "'plan epoch': found a number without end", id="nine bytes for the epoch"
        ),
        pytest.param(sealed(count=2**70), "'count': found a number without end", id="count without end"),
        pytest.param(sealed(index_coding=5), r"'index coding': found 5.*4 \(bitmap\)", id="index coding"),
        pytest.param(sealed(value_coding=6), r"'value coding': found 6.*5 \(int2\)", id="value coding"),
        pytest.param(sealed(value_coding=32), "'value coding': found 32", id="unknown packing"),
        pytest.param(sealed(refusal=9), "'refusal': found 9", id="refusal"),
        pytest.param(
            sealed(elements=999), "'elements': found 999, expected 1000; run the same model", id="elements"
        ),
        pytest.param(sealed(count=1001), "'count': found 1001", id="count above the elements"),
        pytest.param(sealed(index_coding=0, count=5), "'count': found 5", id="dense count"),
        pytest.param(
            sealed(index_coding=0, count=1000), "'length': found 0 bytes", id="dense without values"
        ),
        pytest.param(
            sealed(bytes(4001), index_coding=0, count=1000),
            "'length': found 1 bytes after",
            id="dense and more",
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
            sealed(b"\xff\0\x01\0", count=1, value_coding=16), "'values': found NaN", id="packed infinity"
        ),
        pytest.param(
            sealed(b"\0", count=1, value_coding=16), "'values': found too few", id="packed: no parameter"
        ),
        pytest.param(
            sealed(b"\0\x18\0\0", count=1, value_coding=16),
            "'values': found too few",
            id="packed: no low bits",
        ),
        pytest.param(
            sealed(b"\0\0\0\0\0", count=1, value_coding=16), "'values': found too few", id="packed: no one"
        ),
        pytest.param(
            sealed(b"\0\x20" + bytes(9), count=1, value_coding=16),
            "a number that is too",
            id="parameter of 32",
        ),
        pytest.param(
            sealed(b"\0\x11" + bytes(9), count=1, value_coding=17),
            "a number that is too",
            id="parameter of 17",
        ),
        pytest.param(
            sealed(b"\0\x0f\0\0\x04\0", count=1, value_coding=17), "a number that is too", id="quotient"
        ),
        pytest.param(
            sealed(floats(2.0, 1.0) + b"\0\0", count=1, value_coding=3), "'scales'", id="falling scales"
        ),
        pytest.param(
            sealed(floats(-1.0, 1.0) + b"\0\0", count=1, value_coding=4), "'scales'", id="negative scale"
        ),
        pytest.param(
            sealed(floats(1.0, float("inf")) + b"\0\0", count=1, value_coding=5),
            "'scales'",
            id="infinite scale",
        ),
        pytest.param(
            sealed(floats(1.0), count=1, value_coding=3),
            "'length': found 4 bytes",
            id="half a pair of scales",
        ),
        pytest.param(sealed(floats(1.0), count=1), "'indices': found 0 bytes", id="delta without gaps"),
        pytest.param(
            sealed(floats(1.0) + b"\0\0", count=1),
            "'indices': found bytes left",
            id="delta with one too many",
        ),
        pytest.param(sealed(floats(1.0) + b"\0\xff", count=1), "'indices'", id="delta with an open end"),
        pytest.param(
            sealed(floats(1.0) + b"\xff\xff\xff\xeb", count=1), "beyond.*below 1000", id="delta beyond N"
        ),
        pytest.param(sealed(b"\0", index_coding=2), "'indices': found counts", id="odd length"),
        pytest.param(sealed(index_coding=2), "'indices': found counts", id="group16 without counts"),
        pytest.param(
            sealed(floats(1.0) + words(2, 5), index_coding=2, count=1),
            "'indices': found counts",
            id="group16: too many counted",
        ),
        pytest.param(
            sealed(floats(1.0) + words(0, 5), index_coding=2, count=1),
            "'indices': found counts",
            id="group16: too few counted",
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
            sealed(floats(1.0) + words(1, 1000), index_coding=2, count=1), "beyond", id="group16 beyond N"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\x09\xff\x01", index_coding=3, count=1), "too few", id="rice without a one"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\0\x01\0", index_coding=3, count=1), "left over", id="rice and more"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\x0a\xe8\x03\x01", index_coding=3, count=1), "beyond", id="rice beyond N"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\x0b\0\0\x01", index_coding=3, count=1), "beyond", id="rice parameter"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\x09\0\0\x04", index_coding=3, count=1), "beyond", id="rice quotient"
        ),
        pytest.param(
            sealed(floats(1.0) + bytes(124), index_coding=4, count=1), "counts", id="bitmap: too short"
        ),
        pytest.param(
            sealed(floats(1.0) + bytes(125), index_coding=4, count=1), "counts", id="bitmap: no one"
        ),
        pytest.param(
            sealed(floats(1.0) + b"\3" + bytes(124), index_coding=4, count=1), "counts", id="bitmap: two ones"
        ),
        pytest.param(
            sealed(floats(1.0) + bytes(12) + b"\x10", index_coding=4, count=1, elements=100),
            "'elements': found 100",
            id="bitmap of another tensor",
        ),
        pytest.param(
            sealed(b"\0", index_coding=0, refusal=1), "'refusal'.*nothing behind", id="refusal, data"
        ),
        pytest.param(
            sealed(index_coding=0, refusal=1, count=3), "'refusal'.*nothing", id="refusal with a count"
        ),
        pytest.param(sealed(index_coding=1, refusal=1), "'refusal'.*nothing", id="refusal with a coding"),
        pytest.param(
            sealed(index_coding=0, value_coding=16, refusal=1), "'refusal'.*nothing", id="refusal, packed"
        ),
    ],
)
def test_a_wrong_field_under_a_right_checksum_is_refused_by_name(payload, message):
    with pytest.raises(PayloadError, match=message):
        decode(payload, 1000)


def test_a_bitmap_with_a_one_behind_the_last_element_is_refused():
    payload = sealed(floats(1.0) + bytes(12) + b"\x10", index_coding=4, count=1, elements=100)
    with pytest.raises(PayloadError, match="beyond the tensor"):
        decode(payload, 100)


@pytest.mark.parametrize("index_coding", range(5))
@pytest.mark.parametrize("value_coding", [*range(6), *range(16, 22)])
@pytest.mark.parametrize("count", [0, 1, 2**40])
def test_a_header_that_claims_a_terabyte_takes_no_memory(index_coding, value_coding, count):
    payload = sealed(index_coding=index_coding, value_coding=value_coding, elements=2**40, count=count)
    assert payload.numel() < 40
    tracemalloc.start()
    try:
        if (index_coding, count) in {(1, 0), (3, 0)} and value_coding < 16:
            assert decode(payload, 2**40).count == 0
        else:
            with pytest.raises(PayloadError):
                decode(payload, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("index_coding", range(1, 5))
@pytest.mark.parametrize("value_coding", [*range(6), *range(16, 22)])
def test_as_many_entries_as_the_bytes_could_hold_take_a_small_multiple_of_their_memory(
    index_coding, value_coding
):
    body = b"\xff" * 100_000
    for count in (100_000, 200_000, 400_000, 800_000):
        payload = sealed(
            body, index_coding=index_coding, value_coding=value_coding, elements=2**40, count=count
        )
        tracemalloc.start()
        try:
            with pytest.raises(PayloadError):
                decode(payload, 2**40)
            assert tracemalloc.get_traced_memory()[1] < 100 * len(body)
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


@given(data=st.binary(max_size=100))
def test_random_bytes_are_refused(data):
    with pytest.raises(PayloadError):
        decode(tensor(data), 10)

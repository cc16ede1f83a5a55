"""Valid payloads spoiled at random, under a right checksum so that the deeper layers see them."""

import itertools
import struct

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import Payload, PayloadError, Selection, decode, encode
from gradsieve.codec.checksum import checksum


def near(count: int) -> list[float]:
    """Values that pack well."""
    return [(-1) ** number * (1 + number * 37 % 101 / 128) for number in range(count)]


def variable(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + variable(number // 128)


def numbers(*header: int) -> bytes:
    return b"".join(map(variable, header))


def valid(payload: Payload, elements: int) -> bool:
    positions = range(elements) if payload.indices is None else payload.indices.tolist()
    rising = all(a < b for a, b in itertools.pairwise(positions))
    within = not len(positions) or (positions[0] >= 0 and positions[-1] < elements)
    fits = payload.refused or len(positions) == payload.count
    return rising and within and fits and bool(torch.isfinite(payload.values).all())


def attempt(unsealed: bytes, elements: int) -> None:
    """Seal and decode what may be anything: PayloadError or a valid result, nothing else."""
    start = np.frombuffer(bytearray(unsealed), np.uint8)
    payload = unsealed + checksum(start, 0, start.size).to_bytes(4, "little")
    try:
        decoded = decode(torch.tensor(list(payload), dtype=torch.uint8), elements)
    except PayloadError:
        return
    assert valid(decoded, elements)


@settings(max_examples=200)
@given(
    body=st.binary(max_size=60),
    index_coding=st.integers(0, 5),
    value_coding=st.sampled_from([*range(7), *range(16, 23)]),
    refusal=st.sampled_from([0, 0, 0, 1]),
    elements=st.sampled_from([0, 1, 5, 300, 70_000, 2**40]),
    count=st.integers(0, 12),
)
def test_random_bytes_under_a_right_checksum_are_refused_or_valid(
    body, index_coding, value_coding, refusal, elements, count
):
    start = struct.pack("<4sBBBB", b"GRSV", 2, index_coding, value_coding, refusal)
    attempt(start + numbers(0, elements, count, len(body)) + body, elements)


def shaped(indices: list[int], elements: int, value_dtype: str, scale: float) -> bytes:
    """Return a valid payload without its checksum."""
    values = torch.tensor(near(len(indices))) * scale
    return bytes(encode(Selection(torch.tensor(indices), values, 0.0), elements, value_dtype).tolist())[:-4]


SHAPES = st.sampled_from(
    [
        ([*range(24)], 24),
        ([*range(128, 4000, 250)], 4000),
        ([60_000, 60_001], 65_536),
        ([*range(0, 3000, 20)], 3000),
        ([*range(0, 300, 2)], 300),
        ([*range(0, 2**36, 2**32 - 9)], 2**36),
    ]
)
VALID = st.tuples(
    SHAPES,
    st.sampled_from(["float32", "float16", "bfloat16", "int8", "int4", "int2"]),
    st.sampled_from([1.0, 1e-6, 1e30]),
).map(lambda parts: (shaped(*parts[0], *parts[1:]), parts[0][1]))
CHANGES = st.lists(st.tuples(st.integers(5, 400), st.integers(0, 255)), max_size=4)


@settings(max_examples=400)
@given(first=VALID, second=VALID, changes=CHANGES, cut=st.integers(8, 400), paste=st.integers(8, 400))
def test_changed_cut_and_spliced_payloads_are_refused_or_valid(first, second, changes, cut, paste):
    (payload, elements), (other, _) = first, second
    for spoiled in (payload, payload[:cut], payload[:cut] + other[paste:]):
        data = bytearray(spoiled)
        for position, value in changes:
            if position < len(data):
                data[position] = value
        attempt(bytes(data), elements)


@settings(max_examples=200)
@given(first=VALID, second=VALID, changes=CHANGES, swap=st.booleans())
def test_changed_bodies_are_refused_or_valid(first, second, changes, swap):
    (payload, elements), (other, _) = first, second
    body = bytearray(other[12:] if swap else payload[12:])
    for position, value in changes:
        if position < len(body):
            body[position] = value
    for count in (0, 1, 24, 150):
        attempt(payload[:8] + numbers(0, elements, count, len(body)) + bytes(body), elements)

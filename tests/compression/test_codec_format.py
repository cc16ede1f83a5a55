"""The bytes are those of docs/wire-format.md: a second reader, written from it, understands them."""

import struct
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import Refusal, Selection, decode, encode, encode_refusal

DOCUMENT = Path(__file__).parents[2] / "docs" / "wire-format.md"


def selection(indices: list[int], values: list[float]) -> Selection:
    return Selection(torch.tensor(indices, dtype=torch.int64), torch.tensor(values), 0.0)


def read_as_documented(payload: bytes) -> dict[int, float]:
    magic, version, coding, kind, refusal, _, crc, elements, count, length = struct.unpack(
        "<4sBBBBIIQQQ", payload[:40]
    )
    assert (magic, version, refusal, length) == (b"GRSV", 1, 0, len(payload))
    assert crc == zlib.crc32(payload[:12] + payload[16:])
    size = (4, 2, 2)[kind]
    raw, rest = payload[40 : 40 + size * count], payload[40 + size * count :]
    if kind == 2:
        raw = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
    values = struct.unpack(f"<{count}{'fef'[kind]}", raw)
    positions = (every, gaps, groups)[coding](rest, elements)
    return dict(zip(positions, values, strict=True))


def every(rest: bytes, elements: int) -> list[int]:
    assert not rest
    return list(range(elements))


def gaps(rest: bytes, elements: int) -> list[int]:
    positions, gap, last = [], 0, -1
    for byte in rest:
        gap += byte
        if byte != 255:
            last, gap = last + gap + 1, 0
            positions.append(last)
    assert gap == 0
    assert last < elements
    return positions


def groups(rest: bytes, elements: int) -> list[int]:
    number = -(-elements // 65536)
    words = struct.unpack(f"<{len(rest) // 2}H", rest)
    starts = [65536 * group for group in range(number) for _ in range(words[group])]
    return [start + offset for start, offset in zip(starts, words[number:], strict=True)]


GOLDEN = [
    pytest.param(
        selection([0, 1, 2], [1.0, -2.0, 0.5]), 3, "float32", 0,
        "47525356 01000000 00000000 a5efeb71 0300000000000000 0300000000000000 3400000000000000"
        "0000803f 000000c0 0000003f",
        id="dense float32",
    ),
    pytest.param(
        selection([0, 2], [1.0, 0.5]), 3, "bfloat16", 0,
        "47525356 01000200 00000000 bf9b752e 0300000000000000 0300000000000000 2e00000000000000"
        "803f 0000 003f",
        id="dense bfloat16 with a gap",
    ),
    pytest.param(
        selection([0, 255, 511], [1.0, -2.0, 0.5]), 600, "float32", 0,
        "47525356 01010000 00000000 b6e68fc1 5802000000000000 0300000000000000 3800000000000000"
        "0000803f 000000c0 0000003f 00 fe ff00",
        id="delta at the escape's edge",
    ),
    pytest.param(
        selection([5, 70_000], [1.0, -2.0]), 70_001, "float32", 0,
        "47525356 01020000 00000000 4b545b7b 7111010000000000 0200000000000000 3800000000000000"
        "0000803f 000000c0 0100 0100 0500 7011",
        id="group16",
    ),
    pytest.param(
        selection([], []), 100_000, "float32", 2**32 - 1,
        "47525356 01010000 ffffffff 5ab23462 a086010000000000 0000000000000000 2800000000000000",
        id="empty, the highest epoch",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "elements", "value_dtype", "epoch", "expected"), GOLDEN)
def test_the_bytes_are_these(chosen, elements, value_dtype, epoch, expected):
    payload = encode(chosen, elements, value_dtype, epoch)
    assert payload.numpy().tobytes().hex() == expected.replace(" ", "")
    assert decode(payload, elements).epoch == epoch


def test_a_refusal_is_this_header():
    expected = "47525356 01000001 00000000 b90b5b70 a086010000000000 0000000000000000 2800000000000000"
    payload = encode_refusal(100_000, Refusal.NON_FINITE)
    assert payload.numpy().tobytes().hex() == expected.replace(" ", "")


def test_the_documented_example_is_what_is_sent():
    block = DOCUMENT.read_text(encoding="utf-8").split("```hex\n")[1].split("```")[0]
    documented = bytes.fromhex(block)
    chosen = selection([5, 6, 300, 999], [1.0, -2.0, 0.5, 0.25])
    assert encode(chosen, 1000, "float16", epoch=7).numpy().tobytes() == documented
    assert read_as_documented(documented) == {5: 1.0, 6: -2.0, 300: 0.5, 999: 0.25}


@settings(max_examples=50, deadline=None)
@given(
    positions=st.sets(st.one_of(st.integers(0, 400), st.integers(0, 200_000)), max_size=60),
    beyond=st.integers(1, 100_000),
    value_dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_a_reader_written_from_the_document_reads_what_we_write(positions, beyond, value_dtype):
    indices = sorted(positions)
    elements = max(indices, default=0) + beyond
    payload = encode(selection(indices, [0.5 + index % 64 for index in indices]), elements, value_dtype)
    read = read_as_documented(payload.numpy().tobytes())
    assert {index: value for index, value in read.items() if value} == {i: 0.5 + i % 64 for i in indices}

"""A frame says what bucket its content belongs to, and nothing but a whole frame is believed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.codec import Label, encode_refusal, frame, unframe
from gradsieve.codec.checksum import checksum
from gradsieve.errors import PayloadError

NUMBERS = st.integers(0, 2**56 - 1)
LABEL = Label(epoch=3, sizes=(1000, 70_000), ready_microseconds=123_456)
GOOD = frame(torch.arange(40, dtype=torch.uint8), LABEL)


def tensor(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def sealed(start: bytes) -> torch.Tensor:
    """Return bytes with their checksum behind them."""
    data = tensor(start + bytes(4)).numpy()
    data[-4:] = list(checksum(data, 0, data.size - 4).to_bytes(4, "little"))
    return torch.from_numpy(data)


@given(epoch=NUMBERS, ready=NUMBERS, sizes=st.lists(NUMBERS, max_size=20), content=st.binary(max_size=300))
def test_what_was_framed_comes_out_again(epoch, ready, sizes, content):
    label = Label(epoch, tuple(sizes), ready)
    found, inside = unframe(frame(tensor(content), label))
    assert found == label
    assert bytes(inside.numpy()) == content


def test_every_truncation_is_refused():
    for length in range(GOOD.numel()):
        with pytest.raises(PayloadError):
            unframe(GOOD[:length])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_refused(flip):
    for position in range(GOOD.numel()):
        changed = GOOD.clone()
        changed[position] ^= flip
        with pytest.raises(PayloadError):
            unframe(changed)


def test_bytes_behind_it_are_refused():
    with pytest.raises(PayloadError):
        unframe(torch.cat([GOOD, GOOD[:1]]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"GRSF", "field 'frame': found 4 bytes", id="short"),
        pytest.param(bytes(encode_refusal(1000).numpy()), "not a gradsieve frame", id="a payload"),
        pytest.param(b"GRSF\2" + bytes(20), "field 'version': found 2, expected 1", id="version"),
    ],
)
def test_foreign_bytes_are_refused_by_name(data, message):
    with pytest.raises(PayloadError, match=message):
        unframe(tensor(data))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        pytest.param(b"", "field 'plan epoch': found a number without end", id="no numbers"),
        pytest.param(b"\0\xff\xff\xff\xff\xff\xff\xff\xff\x01", "field 'ready time'", id="too long"),
        pytest.param(b"\0\0\x7f\0", "field 'tensors': found 127, expected below 1", id="tensors"),
        pytest.param(b"\0\0\x02\x80\x80\x80", "field 'size': found a number without end", id="size"),
        pytest.param(b"\0\0\1\5\x02\0", "field 'length': found 2, expected 1 bytes", id="length"),
    ],
)
def test_a_frame_that_contradicts_itself_is_refused_though_its_checksum_is_right(numbers, message):
    with pytest.raises(PayloadError, match=message):
        unframe(sealed(b"GRSF\1" + numbers))

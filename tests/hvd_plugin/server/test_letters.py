"""Letters of the parameter server as bytes, and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import PayloadError
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.letters import (
    Drop,
    Leave,
    MakeVersion,
    Orders,
    Parts,
    Push,
    Send,
    order_as_json,
    order_from_json,
    pack,
    unpack,
)

PUSH = Push(number=3, version=1, samples=8, seconds=0.1, hyperparameters=[{"lr": 0.1, "betas": [0.9, 0.99]}])


def test_a_letter_arrives_as_it_was_written():
    assert unpack(pack(PUSH)) == PUSH
    assert unpack(pack(Leave())) == Leave()
    sizes = (0, 5, 300)
    written = Parts(number=4, tensors=[1, 2, 3], parts=tuple(torch.randint(256, (n,)).byte() for n in sizes))
    read = unpack(pack(written))
    assert (read.number, read.tensors) == (4, [1, 2, 3])
    for mine, theirs in zip(read.parts, written.parts, strict=True):
        assert torch.equal(mine, theirs)


def test_orders_arrive_as_they_were_given():
    release = MakeVersion(2, (Contribution(5), Contribution(6, 0.8, gated=True)), [{"lr": 0.5}])
    orders = [release, Drop(4), Send((0, 3), (1, 0)), Send((1,), (2,), last=True)]
    letter = unpack(pack(Orders(each=[order_as_json(each) for each in orders])))
    assert [order_from_json(each) for each in letter.each] == orders


@given(st.data())
def test_damaged_letters_are_refused(data):
    packed = pack(PUSH)
    place = data.draw(st.integers(0, packed.numel() - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        unpack(packed)


@given(st.integers(0, pack(PUSH).numel() - 1))
def test_truncated_letters_are_refused(length):
    with pytest.raises(PayloadError):
        unpack(pack(PUSH)[:length])

"""Letters of the parameter server as bytes, and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import PayloadError
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.letters import (
    AskBatch,
    Drop,
    Leave,
    MakeVersion,
    Orders,
    Parts,
    Push,
    Send,
    copied,
    order_as_json,
    order_from_json,
    pack,
    unpack,
)
from gradsieve_hvd.server.reply import viewed_as

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


@given(st.integers(0, 400), st.integers(1, 5))
def test_values_may_be_looked_at_where_they_lie_in_a_letter(number, tensors):
    written = Parts(
        number=10**number,
        tensors=[*range(tensors)],
        parts=tuple(torch.rand(7).view(torch.uint8) for _ in range(tensors)),
    )
    for mine, theirs in zip(unpack(pack(written)).parts, written.parts, strict=True):
        assert mine.data_ptr() % 4 == 0
        assert torch.equal(viewed_as(mine, torch.float32), theirs.view(torch.float32))
        assert viewed_as(mine, torch.float32).data_ptr() == mine.data_ptr()
        assert torch.equal(
            viewed_as(torch.cat([mine[:1], mine])[1:], torch.float32), theirs.view(torch.float32)
        )


def test_a_letter_to_oneself_is_what_others_would_read_and_shares_no_memory():
    data = {"samples": 8, "batch_size": 2, "resume": [(0, ((0, 4),))]}
    asked = AskBatch(iteration=1, turn=0, epoch=0, data=data)
    assert copied(asked) == unpack(pack(asked))
    part = torch.ones(3, dtype=torch.uint8)
    read = copied(Parts(number=1, tensors=[0], raw=[0], parts=(part,)))
    part.zero_()
    assert read.parts[0].tolist() == [1, 1, 1]


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

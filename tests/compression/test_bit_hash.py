"""The hash of a tensor's bits: equal for equal bits, another one for any changed bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.bit_hash import bit_hash

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.bool,
]
sizes = st.one_of(st.integers(1, 70), st.sampled_from([32_768 * 8, 32_768 * 8 + 1, 300_001]))


def random_bytes(size: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@settings(max_examples=60, deadline=None)
@given(size=sizes, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), seed=st.integers(0, 9))
def test_every_bit_counts(size, place, bit, seed):
    data = random_bytes(size, seed)
    changed = data.clone()
    changed[int(place * size)] ^= 1 << bit
    assert bit_hash(changed) != bit_hash(data)
    assert bit_hash(data.clone()) == bit_hash(data)


@settings(max_examples=40, deadline=None)
@given(size=sizes, seed=st.integers(0, 9))
def test_the_order_and_the_length_count(size, seed):
    data = random_bytes(size, seed)
    words = torch.arange(2_000).roll(seed)
    assert bit_hash(words.roll(1)) != bit_hash(words)
    assert bit_hash(torch.cat([data, torch.zeros(1, dtype=torch.uint8)])) != bit_hash(data)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neither_strides_nor_alignment_count(dtype):
    whole = torch.randn(64, 3, 5, 5, generator=torch.Generator().manual_seed(1)).mul(50).to(dtype)
    assert bit_hash(whole.to(memory_format=torch.channels_last)) == bit_hash(whole)
    shifted = whole.reshape(-1)[1:]
    assert bit_hash(shifted) == bit_hash(shifted.clone())
    assert bit_hash(whole.reshape(-1)) == bit_hash(whole)


def test_bits_count_rather_than_values():
    assert bit_hash(torch.tensor([0.0])) != bit_hash(torch.tensor([-0.0]))
    assert bit_hash(torch.tensor([float("nan")])) == bit_hash(torch.tensor([float("nan")]))


def test_it_is_the_same_forever_and_whatever_the_number_of_threads():
    """Ranks may run on different machines: the hash must not depend on anything but the bits."""
    tensor = torch.arange(100_000, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        found = set()
        for count in (1, 2):
            torch.set_num_threads(count)
            found.add(bit_hash(tensor))
    finally:
        torch.set_num_threads(threads)
    assert found == {-5923600484482336640}
    assert bit_hash(torch.empty(0)) == 0


def test_the_tensor_stays_as_it_is():
    tensor = torch.randn(10, requires_grad=True)
    before = tensor.detach().clone()
    bit_hash(tensor)
    assert torch.equal(tensor.detach(), before)

"""A hash of a tensor's bits that is the same on every device, for finding out whether two copies differ.

It recognizes accidents, not forgeries: whoever wants to can build two tensors with the same hash.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_BLOCK = 1 << 15  # words of 8 bytes: with its products half a MiB, which stays in a core's cache
_GPU_BLOCKS = 128  # in one kernel
_WORD_BYTES = 8


def bit_hash(tensor: Tensor) -> int:
    """Return a hash (signed, 64 bits) of the bits of ``tensor``: any shape, strides, device and dtype.

    1. Read the elements in row-major order as words of 8 bytes, the last one filled up with zeros.
    2. Of every block of 32 768 words take the sum of word times multiplier, modulo 2^64. The multipliers are
       odd, so one changed word changes the sum whatever the change is.
    3. Treat the sums as words in turn, until one is left; add the number of bytes.

    Only integers are added, so neither thread counts nor devices change the result. Reads the tensor once and
    needs no memory of its size, unless it is not contiguous or does not begin at a multiple of 8 bytes; it is
    not mutated.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    data = flat.view(torch.uint8)
    if data.storage_offset() % _WORD_BYTES:
        data = data.clone()
    whole = data.numel() // _WORD_BYTES * _WORD_BYTES
    rest = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=data.device)
    rest[: data.numel() - whole] = data[whole:]
    words = torch.cat([_block_sums(data[:whole].view(torch.int64)), rest.view(torch.int64)])
    while words.numel() > 1:
        words = _block_sums(words)
    return int((words[0] + data.numel()).item())


def _block_sums(words: Tensor) -> Tensor:
    """Return the sums of the blocks of ``words`` (int64 [N]): int64 [ceil(N / 32 768)]."""
    multipliers = _multipliers(words.device)
    at_once = _BLOCK * (1 if words.device.type == "cpu" else _GPU_BLOCKS)
    whole = words.numel() // _BLOCK * _BLOCK
    parts = [
        words[start : min(start + at_once, whole)].view(-1, _BLOCK).mul(multipliers).sum(dim=1)
        for start in range(0, whole, at_once)
    ]
    rest = words[whole:]
    return torch.cat([*parts, rest.mul(multipliers[: rest.numel()]).sum().reshape(1)])


@lru_cache(maxsize=16)
def _multipliers(device: torch.device) -> Tensor:
    """Odd numbers without a pattern (int64 [32 768]), always the same: the mixing steps of SplitMix64."""
    mixed = torch.arange(1, _BLOCK + 1, dtype=torch.int64, device="cpu") * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
    return (mixed ^ (mixed >> 27)).bitwise_or(1).to(device)

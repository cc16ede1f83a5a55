"""A sample of a tensor's magnitudes: spread evenly, without a period, and the same in every run."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import SIGN_OFF

_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, as int64: spreads consecutive numbers


def nth_largest_sampled(values: Tensor, sampled: int, number: int, seed: int = 0) -> int:
    """Return the ``number``-th largest pattern among ``sampled`` of the values (fp32 [N])."""
    bits = values[sample_indices(values.numel(), sampled, seed, values.device)].view(torch.int32) & SIGN_OFF
    return int(torch.kthvalue(bits, sampled - number + 1).values)


def sample_indices(elements: int, sampled: int, seed: int, device: torch.device) -> Tensor:
    """Return one place (int64 [sampled], increasing) in each of ``sampled`` equal stretches of the tensor."""
    stretch = elements // sampled
    numbers = torch.arange(sampled, device=device)
    mixed = (numbers + seed * 7919 + 1) * _MULTIPLIER
    mixed = ((mixed >> 29) ^ mixed) * _MULTIPLIER
    return numbers * stretch + ((mixed >> 20) & 0x7FFFFFFF) % stretch

"""Flat buckets of fp64, for gradients that fp32 would not hold."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.base import Transport, allgather

from .dense import Reduced


class WideExchange:
    """Every rank sends all of its values to everyone, (P - 1) N of eight bytes; see `BucketExchange`.

    What other exchanges do with fp32 [N] it does with fp64 [N].
    """

    def exchange(self, gradient: Tensor, transport: Transport, *, refuse: bool = False) -> Reduced:
        """Return the sum, added up in the order of ranks."""
        given = gradient.detach().cpu()
        if refuse:  # NaN is what a refusal looks like in a sum
            given = torch.full_like(given, torch.nan)
        total = torch.zeros_like(given)
        for message in allgather(transport, given.view(torch.uint8)):
            total += message.view(torch.float64)
        return Reduced(total, refused=not all_finite(total))

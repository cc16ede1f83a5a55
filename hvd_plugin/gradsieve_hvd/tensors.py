"""What tensors look like on their way into and out of Horovod."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve import Payload

_REDUCIBLE = (
    torch.float32,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
)  # bf16 is missing in Horovod


def token(gradient: Tensor) -> Tensor:
    """The one element that Horovod all-reduces in a compressed tensor's place; of a dtype that it can put in
    one group with the others.
    """
    dtype = gradient.dtype if gradient.dtype in _REDUCIBLE else torch.float32
    return torch.zeros(1, dtype=dtype, device=gradient.device)


def reducible(gradient: Tensor) -> Tensor:
    """The gradient itself where Horovod can reduce it in place; else a contiguous (channels_last) or fp32
    (bf16) copy.
    """
    known = gradient if gradient.dtype in _REDUCIBLE else gradient.float()
    return known.contiguous()


def sum_into(gradient: Tensor, payloads: list[Payload], factor: float) -> None:
    """Overwrite ``gradient`` (any shape, strides, dtype) with ``factor`` times the sum of the payloads, in
    the order of ranks.
    """
    in_place = gradient.dtype == torch.float32 and gradient.is_contiguous()
    total = (
        gradient.view(-1)
        if in_place
        else torch.empty(gradient.numel(), dtype=torch.float32, device=gradient.device)
    )
    total.zero_()
    for payload in payloads:
        payload.add_into(total, factor)
    if not in_place:
        gradient.copy_(total.view(gradient.shape))

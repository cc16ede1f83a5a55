"""What is handed to Horovod's all-reduce."""

from __future__ import annotations

import torch
from torch import Tensor

_REDUCIBLE = (
    torch.float32,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
)  # bf16 is missing in Horovod


def placeholder(gradient: Tensor) -> Tensor:
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

"""Work space that outlives a call, so that no step pays for fresh pages.

A new N-sized CPU tensor costs a page fault per 4 KiB at its first touch, which for some of the passes here is
more than the pass itself. So every thread keeps one buffer per use, as long as the largest tensor it has
seen: 4 bytes per element of that tensor for gradients that are strided or not fp32, 8 more for residuals in
bf16. On accelerators torch's caching allocator already does this, and knows about streams, which a buffer of
ours would not.
"""

from __future__ import annotations

import threading
from typing import Literal

import torch
from torch import Tensor

Use = Literal["gradient", "residual", "sum"]


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_use: dict[Use, Tensor] = {}


_buffers = _Buffers()


def borrow(elements: int, use: Use, device: torch.device) -> Tensor:
    """Return an uninitialised fp32 tensor [elements], valid until this thread borrows for that use again."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=torch.float32, device=device)
    buffer = _buffers.by_use.get(use)
    if buffer is None or buffer.numel() < elements:
        buffer = torch.empty(elements, dtype=torch.float32, device=device)
        _buffers.by_use[use] = buffer
    return buffer[:elements]


def as_flat(numbers: Tensor, use: Use) -> Tensor:
    """Return a tensor of any shape, strides and floating-point dtype as fp32 [N], in row-major order: itself
    if it is that already, else a copy in what `borrow` returns. It must not require a gradient.
    """
    if numbers.dtype == torch.float32 and numbers.is_contiguous():
        return numbers.view(-1)
    flat = borrow(numbers.numel(), use, numbers.device)
    flat.view(numbers.shape).copy_(numbers)
    return flat

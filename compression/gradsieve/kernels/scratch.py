"""Work space that outlives a call, so that no step pays for fresh pages.

A new N-sized CPU tensor costs a page fault per 4 KiB at its first touch, which for some of the passes here is
more than the pass itself. So every thread keeps one buffer per dtype, as long as the largest tensor it has
seen: at most 5 bytes per element of that tensor (int32 and bool). On accelerators torch's caching allocator
already does this, and knows about streams, which a buffer of ours would not.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, Tensor] = {}


_buffers = _Buffers()


def borrow(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor [elements], valid until this thread borrows the same dtype again."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=dtype, device=device)
    buffer = _buffers.by_dtype.get(dtype)
    if buffer is None or buffer.numel() < elements:
        buffer = torch.empty(elements, dtype=dtype)
        _buffers.by_dtype[dtype] = buffer
    return buffer[:elements]

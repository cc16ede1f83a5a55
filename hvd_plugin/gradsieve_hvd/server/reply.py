"""A tensor's weights on their way to a worker: all of them, or those that have changed since it got its own.

Both are exact: what arrives has the same bits as the shard's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from gradsieve.codec import ValueDtype, decode, encode
from gradsieve.errors import PayloadError
from gradsieve.selection import Selection

_FORMATS: Mapping[torch.dtype, ValueDtype] = MappingProxyType(
    {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
)
"""Of the types whose values the codec takes as they are."""


def packed_weights(weights: Tensor, changed: Tensor | None) -> tuple[Tensor, bool]:
    """Return the bytes (uint8) of a tensor's weights, not mutated, and whether they are all of them.

    changed: indices of those that the receiver lacks; None if it lacks all. All are sent, too, where one is
    not finite, or of a type that the codec rounds.
    """
    flat = weights.detach().contiguous().view(-1)
    if changed is not None and weights.dtype in _FORMATS:
        values = flat[changed].float()
        if bool(torch.isfinite(values).all()):
            return encode(Selection(changed, values, 0.0), flat.numel(), _FORMATS[weights.dtype]), False
    return flat.view(torch.uint8), True


def unpacked_weights(packed: Tensor, present: Tensor, *, whole: bool) -> Tensor:
    """Return a tensor's new weights, given those that the receiver has (any shape; not mutated), in their
    shape, on the CPU.

    Raises:
        PayloadError: they are damaged, or of a tensor of another size.
    """
    if whole:
        expected = present.numel() * present.element_size()
        if packed.numel() != expected:
            raise PayloadError(f"found {packed.numel()} bytes of weights, expected {expected}")
        return packed.clone().view(present.dtype).view(present.shape)  # a clone begins where its type may
    payload = decode(packed, present.numel())
    made = present.detach().to("cpu", copy=True).contiguous().view(-1)
    values = payload.values.to(made.dtype)
    if payload.indices is None:
        made.copy_(values)
    else:
        made[payload.indices] = values
    return made.view(present.shape)

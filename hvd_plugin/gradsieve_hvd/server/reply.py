"""A tensor's weights on their way to a worker: all of them, or those that have changed since it got its own.

Both are exact: what arrives has the same bits as the shard's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Of a tensor. indices: int64, of those that have changed; None for all. values: of its type, flat. Both
    on the CPU; they may share memory with what arrived.
    """

    indices: Tensor | None
    values: Tensor

    def put_into(self, parameter: Tensor) -> None:
        """Overwrite the weights (any shape, any device) that have changed since the version they are of."""
        with torch.no_grad():
            if self.indices is None:
                parameter.copy_(self.values.view(parameter.shape))
                return
            flat = parameter.detach().reshape(-1)  # a copy where it does not lie in one piece
            flat[self.indices.to(flat.device)] = self.values.to(flat.device)
            if not parameter.is_contiguous():
                parameter.copy_(flat.view(parameter.shape))


def unpacked_weights(packed: Tensor, present: Tensor, *, whole: bool) -> NewWeights:
    """Return what `packed_weights` has packed for a receiver whose tensor is ``present`` (not mutated).

    Raises:
        PayloadError: they are damaged, or of a tensor of another size.
    """
    if whole:
        expected = present.numel() * present.element_size()
        if packed.numel() != expected:
            raise PayloadError(f"found {packed.numel()} bytes of weights, expected {expected}")
        return NewWeights(None, viewed_as(packed, present.dtype))
    payload = decode(packed, present.numel())
    return NewWeights(payload.indices, payload.values.to(present.dtype))


def viewed_as(content: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes as values of a type, copied only if they lie where it cannot.

    Raises:
        PayloadError: they are not a number of values.
    """
    size = dtype.itemsize
    if content.numel() % size:
        raise PayloadError(f"found {content.numel()} bytes, expected a multiple of {size}")
    if not content.numel():  # NumPy gives an array without elements strides that torch does not view
        return torch.empty(0, dtype=dtype, device="cpu")
    if content.data_ptr() % size:
        return content.clone().view(dtype)
    # By NumPy the bytes begin a storage of their own: torch looks at a part's place in its storage.
    return torch.from_numpy(content.contiguous().numpy()).view(dtype)

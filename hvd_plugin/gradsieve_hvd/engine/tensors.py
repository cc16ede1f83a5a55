"""What gradients must look like to be exchanged, and how sums get into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradsieve import Payload, SparseGradient
from gradsieve.errors import ConfigurationError
from gradsieve.kernels.magnitude import all_finite

_TRAINABLE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def is_known_dtype(dtype: torch.dtype) -> bool:
    """Whether gradients of this type can be exchanged."""
    return dtype in _TRAINABLE


def require_known_dtype(name: str, dtype: torch.dtype) -> None:
    """Refuse parameters whose gradients cannot be exchanged without losing part of them.

    Raises:
        ConfigurationError: complex numbers, 8-bit floats.
    """
    if not is_known_dtype(dtype):
        known = ", ".join(str(known) for known in _TRAINABLE)
        raise ConfigurationError(
            f"parameter '{name}' is {dtype}, which gradsieve cannot exchange: known are {known}. Keep a "
            "complex parameter as two real ones (torch.view_as_real), or leave it out of the distributed "
            "optimizer and reduce its gradient yourself."
        )


def own_memory(gradient: Tensor) -> None:
    """Give a gradient whose elements share memory (made by ``expand``) memory of its own, and take it out of
    the graph of ``backward(create_graph=True)``: it will be written to.
    """
    if gradient.requires_grad:
        gradient.detach_()
    if any(stride == 0 and size > 1 for stride, size in zip(gradient.stride(), gradient.shape, strict=True)):
        gradient.set_(gradient.clone(memory_format=torch.contiguous_format))  # type: ignore[call-overload]


def sparse_values(gradient: Tensor) -> Tensor:
    """The values of a sparse gradient as they are, rows that come several times included."""
    return gradient._values()  # noqa: SLF001 - values() asks for a sorted copy without repetitions


def sum_into(gradient: Tensor, summands: Sequence[Payload | SparseGradient], factor: float) -> bool:
    """Overwrite ``gradient`` (any shape, strides, dtype) with ``factor`` times the sum of the summands, in
    their order.

    Returns:
        Whether all of it is finite. It is read for that only if the summands' largest magnitudes could add up
        to more than its dtype holds.
    """
    in_place = gradient.dtype == torch.float32 and gradient.is_contiguous()
    total = (
        gradient.view(-1)
        if in_place
        else torch.empty(gradient.numel(), dtype=torch.float32, device=gradient.device)
    )
    total.zero_()
    for summand in summands:
        summand.add_into(total, factor)
    if not in_place:
        gradient.copy_(total.view(gradient.shape))
    most = abs(factor) * sum(summand.largest for summand in summands)
    return most < 0.99 * torch.finfo(gradient.dtype).max or all_finite(gradient)

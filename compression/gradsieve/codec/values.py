"""Number formats of the values: fp32 as they are, fp16 and bf16 rounded to nearest even."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gradsieve.codec.header import ValueCoding

ValueDtype = Literal["float32", "float16", "bfloat16"]

_TORCH = {
    ValueCoding.FLOAT32: torch.float32,
    ValueCoding.FLOAT16: torch.float16,
    ValueCoding.BFLOAT16: torch.bfloat16,
}


def coding_of(value_dtype: ValueDtype) -> ValueCoding:
    """Return the wire's code for a dtype name."""
    return ValueCoding[value_dtype.upper()]


def value_bytes(coding: ValueCoding) -> int:
    """Return the bytes of one value."""
    return _TORCH[coding].itemsize


def sent_values(values: Tensor, value_dtype: ValueDtype) -> Tensor:
    """Return fp32 [K] ``values`` as a receiver will see them, fp32 [K]; the input is not mutated.

    A magnitude beyond the format's range becomes its largest finite number: the excess stays in the sender's
    residual and goes out with the next steps, whereas infinity would ruin every rank's weights.
    """
    return _rounded(values, coding_of(value_dtype)).to(torch.float32)


def write_values(values: Tensor, coding: ValueCoding) -> bytes:
    """Return fp32 [K] ``values`` as little-endian bytes."""
    rounded = _rounded(values.detach().cpu(), coding).contiguous()
    if coding is ValueCoding.FLOAT32:
        return rounded.numpy().astype("<f4", copy=False).tobytes()
    return rounded.view(torch.int16).numpy().astype("<i2", copy=False).tobytes()


def read_values(body: memoryview, count: int, coding: ValueCoding) -> Tensor:
    """Return the first ``count`` values of ``body`` as fp32 [count], in memory of their own, at any
    alignment.
    """
    if coding is ValueCoding.FLOAT32:
        return torch.from_numpy(np.frombuffer(body, "<f4", count).astype(np.float32))
    patterns = torch.from_numpy(np.frombuffer(body, "<i2", count).astype(np.int16))
    return patterns.view(_TORCH[coding]).to(torch.float32)


def _rounded(values: Tensor, coding: ValueCoding) -> Tensor:
    if coding is ValueCoding.FLOAT32:
        return values
    largest = torch.finfo(_TORCH[coding]).max
    return values.clamp(-largest, largest).to(_TORCH[coding])

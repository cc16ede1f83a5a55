"""From a selection to one contiguous uint8 payload, in the smallest of the codings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradsieve.codec.header import HEADER_BYTES, Header, IndexCoding, Refusal, ValueCoding, seal
from gradsieve.codec.indices import SPARSE, Indices
from gradsieve.codec.values import ValueDtype, coding_of, value_bytes, write_values
from gradsieve.selection import Selection


def encode(selection: Selection, elements: int, value_dtype: ValueDtype, epoch: int = 0) -> Tensor:
    """Return a selection of a tensor of ``elements`` elements as a payload (uint8 [bytes], CPU, contiguous).

    1. Compute the size of every index coding, and of sending all ``elements`` values without indices.
    2. Write the smallest: header, values, index bytes. Among equals the first of dense, delta, group16.

    Values are rounded as :func:`sent_values` says. The selection may be on any device and is not mutated.
    """
    values = coding_of(value_dtype)
    indices: Indices = selection.indices.detach().cpu().numpy()
    coding = _smallest(indices, elements, value_bytes(values))
    if coding is IndexCoding.DENSE:
        dense = torch.zeros(elements).index_copy_(0, selection.indices.cpu(), selection.values.detach().cpu())
        return _payload(coding, values, epoch, elements, elements, write_values(dense, values))
    body = write_values(selection.values, values) + SPARSE[coding].write(indices, elements)
    return _payload(coding, values, epoch, elements, indices.size, body)


def encode_refusal(elements: int, reason: Refusal = Refusal.NON_FINITE, epoch: int = 0) -> Tensor:
    """Return the payload (header only) of a rank that sends nothing for this tensor, and why."""
    header = Header(IndexCoding.DENSE, ValueCoding.FLOAT32, reason, epoch, elements, 0, HEADER_BYTES)
    return _tensor(seal(header, b""))


def _smallest(indices: Indices, elements: int, bytes_per_value: int) -> IndexCoding:
    sizes = {IndexCoding.DENSE: bytes_per_value * elements}
    for coding, rule in SPARSE.items():
        size = rule.size(indices, elements)
        if size is not None:
            sizes[coding] = bytes_per_value * indices.size + size
    return min(sizes, key=lambda coding: (sizes[coding], coding))


def _payload(
    index_coding: IndexCoding, value_coding: ValueCoding, epoch: int, elements: int, count: int, body: bytes
) -> Tensor:
    length = HEADER_BYTES + len(body)
    header = Header(index_coding, value_coding, Refusal.NONE, epoch, elements, count, length)
    return _tensor(seal(header, body))


def _tensor(payload: bytearray) -> Tensor:
    return torch.from_numpy(np.frombuffer(payload, np.uint8))

"""From a selection to one contiguous uint8 payload, in the smallest of the codings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradsieve.codec.bits import SLACK
from gradsieve.codec.checksum import CHECKSUM_BYTES
from gradsieve.codec.header import Bytes, Header, IndexCoding, Refusal, ValueCoding, pack, seal
from gradsieve.codec.indices import PlannedIndices, no_indices, plan_indices
from gradsieve.codec.values import (
    PlannedValues,
    ValueDtype,
    as_received,
    coding_of,
    float_bits_of,
    is_floating,
    pack_if_smaller,
    plan_unpacked,
    raw_bytes,
)
from gradsieve.kernels.parts import both
from gradsieve.selection import Selection
from gradsieve.sparse_gradient import SparseGradient


def encode(selection: Selection, elements: int, value_dtype: ValueDtype, epoch: int = 0) -> Tensor:
    """Return a selection of a tensor of ``elements`` elements as a payload (uint8 [bytes], CPU, contiguous).

    1. Compute the size of every index coding, and of the values as they are and Golomb-Rice coded.
    2. Compare with sending all ``elements`` values without indices (floating-point formats only: the levels
       of the others depend on which values are sent).
    3. Write the smallest into one buffer: header, values, index bytes, checksum.

    Values are rounded as :func:`sent_values` says. The selection may be on any device and is not mutated.

    Raises PayloadError if its indices are not strictly increasing within [0, N) or a value is not finite.
    """
    return _encoded(selection, elements, coding_of(value_dtype), epoch)[0]


def encode_rounded(gradient: SparseGradient, value_dtype: ValueDtype) -> tuple[Tensor, SparseGradient]:
    """Return some entries as a payload (see `encode`), and what rounding takes away from them, on their
    device: what receivers see plus that is ``gradient``, which is not mutated. Some of it may be zero.

    Raises PayloadError if a value is not finite.
    """
    coding = coding_of(value_dtype)
    payload, rounded = _encoded(gradient.selection(), gradient.elements, coding, 0)
    if coding is ValueCoding.FLOAT32:
        return payload, SparseGradient.nothing(gradient.elements, gradient.values.device)
    seen = as_received(rounded, coding).to(gradient.values.device)
    return payload, gradient.with_values(gradient.values - seen)


def _encoded(
    selection: Selection, elements: int, coding: ValueCoding, epoch: int
) -> tuple[Tensor, PlannedValues]:
    """Return the payload, and the selection's rounded values."""
    indices = selection.indices.detach().cpu().contiguous().numpy()
    float_bits = float_bits_of(selection.values)
    count = indices.size

    def plan_values() -> tuple[PlannedValues, PlannedValues]:
        rounded = plan_unpacked(float_bits, coding)
        return rounded, pack_if_smaller(rounded, coding)

    planned_indices, (rounded, values) = both(lambda: plan_indices(indices, elements), plan_values, count)
    if is_floating(coding) and raw_bytes(coding, elements) < planned_indices.size + values.size:
        every = np.zeros(elements, np.uint32)
        every[planned_indices.indices] = float_bits
        planned_indices, values = no_indices(elements), pack_if_smaller(plan_unpacked(every, coding), coding)
    payload, at = _packed_header(_header(planned_indices, values, coding, elements, epoch))
    # Apart from each other, as writers touch a few bytes beyond their end.
    index_bytes = np.empty(planned_indices.size + SLACK, np.uint8)
    _, at = both(lambda: planned_indices.write(index_bytes, 0), lambda: values.write(payload, at), count)
    payload[at : at + planned_indices.size] = index_bytes[: planned_indices.size]
    return _sealed(payload, at + planned_indices.size), rounded


def encode_all(values: Tensor, value_dtype: ValueDtype, epoch: int = 0) -> Tensor:
    """Return all values (fp32 [N], not mutated) of a tensor as a payload, without positions.

    Nothing is tried to make it smaller: where everything is sent, time counts, and values pack badly.

    Raises PayloadError if a value is not finite.
    """
    coding = coding_of(value_dtype)
    planned = plan_unpacked(float_bits_of(values), coding)
    payload, at = _packed_header(_header(no_indices(values.numel()), planned, coding, values.numel(), epoch))
    return _sealed(payload, planned.write(payload, at))


def encode_refusal(elements: int, reason: Refusal = Refusal.NON_FINITE, epoch: int = 0) -> Tensor:
    """Return the payload (without a body) of a rank that sends nothing for this tensor, and why."""
    header = Header(IndexCoding.DENSE, ValueCoding.FLOAT32, False, reason, epoch, elements, 0, 0)
    payload, at = _packed_header(header)
    return _sealed(payload, at)


def _header(
    indices: PlannedIndices, values: PlannedValues, coding: ValueCoding, elements: int, epoch: int
) -> Header:
    body, count = values.size + indices.size, values.numbers.size
    return Header(indices.coding, coding, values.packed, Refusal.NONE, epoch, elements, count, body)


def _packed_header(header: Header) -> tuple[Bytes, int]:
    """Return the payload's buffer with the header in it, and where the body starts."""
    start = pack(header)
    payload = np.empty(len(start) + header.body + CHECKSUM_BYTES + SLACK, np.uint8)
    payload[: len(start)] = np.frombuffer(start, np.uint8)
    return payload, len(start)


def _sealed(payload: Bytes, end: int) -> Tensor:
    """Return the payload, whose body ends at ``end``, as a tensor; the buffer's spare bytes are cut off."""
    length = end + CHECKSUM_BYTES
    seal(payload, length)
    return torch.from_numpy(payload[:length])

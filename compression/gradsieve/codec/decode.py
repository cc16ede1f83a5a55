"""From bytes to payloads; nothing is believed, and nothing is touched before everything has been checked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradsieve.codec.header import (
    HEADER_BYTES,
    Header,
    IndexCoding,
    Refusal,
    ValueCoding,
    length_of,
    open_sealed,
    unexpected,
)
from gradsieve.codec.indices import SPARSE
from gradsieve.codec.payload import Payload
from gradsieve.codec.values import read_values, value_bytes
from gradsieve.errors import PayloadError


def decode(payload: Tensor, elements: int) -> Payload:
    """Return the contents of exactly one payload (uint8 [bytes]) for a tensor of ``elements`` elements.

    The result owns its memory, of which no more is taken than a small multiple of the bytes given, whatever
    they claim.

    Raises PayloadError, naming the field, what was found and what was expected, for bytes that are truncated,
    corrupted, foreign, of another version or for a tensor of another size.
    """
    return _decode(_bytes(payload), elements)


def split(buffer: Tensor, payloads: int, elements: int | None = None) -> list[Payload]:
    """Return the contents of ``payloads`` payloads, one after the other in uint8 [bytes] at any alignment.

    ``elements``: size of the tensor that they are for; None: the first one's, which the others must share.

    Raises PayloadError as :func:`decode` does, saying which payload it was, and if bytes are left over.
    """
    rest = _bytes(buffer)
    decoded: list[Payload] = []
    for number in range(payloads):
        try:
            length = length_of(rest)
            decoded.append(_decode(rest[:length], elements))
        except PayloadError as error:
            raise PayloadError(f"payload {number + 1} of {payloads}: {error}") from error
        elements = decoded[0].elements
        rest = rest[length:]
    if len(rest):
        raise unexpected(
            "length", f"{len(rest)} bytes after {payloads} payloads", "none", "ranks sent more than one each"
        )
    return decoded


def _decode(payload: memoryview, elements: int | None) -> Payload:
    header = open_sealed(payload)
    if elements is not None and header.elements != elements:
        raise unexpected("elements", header.elements, elements, "run the same model on all ranks")
    body = payload[HEADER_BYTES:]
    if header.refusal is not Refusal.NONE:
        return _refusal(header, body)
    values, index_bytes = _values(header, body)
    indices = None
    if header.index_coding is not IndexCoding.DENSE:
        indices = torch.from_numpy(
            SPARSE[header.index_coding].read(index_bytes, header.count, header.elements)
        )
    return Payload(header.elements, header.epoch, header.refusal, indices, values)


def _refusal(header: Header, body: memoryview) -> Payload:
    codings = (header.index_coding, header.value_coding)
    if header.count or len(body) or codings != (IndexCoding.DENSE, ValueCoding.FLOAT32):
        raise unexpected(
            "refusal",
            f"{header.count} values, {len(body)} bytes",
            "a bare header",
            "the payload is corrupted",
        )
    return Payload(header.elements, header.epoch, header.refusal, None, torch.empty(0))


def _values(header: Header, body: memoryview) -> tuple[Tensor, memoryview]:
    """Return the values and the bytes after them."""
    size = header.count * value_bytes(header.value_coding)
    dense = header.index_coding is IndexCoding.DENSE
    if header.count > header.elements or (dense and header.count != header.elements):
        raise unexpected("count", header.count, f"{header.elements} elements", "the payload is corrupted")
    if size > len(body) or (dense and size != len(body)):
        raise unexpected(
            "length", f"{len(body)} bytes of data", f"{size} bytes of values", "the payload is corrupted"
        )
    values = read_values(body, header.count, header.value_coding)
    if not np.isfinite(values.numpy()).all():  # several times faster than torch's on short arrays
        raise unexpected("values", "NaN or infinity", "finite numbers", "a rank that has these must refuse")
    return values, body[size:]


def _bytes(payload: Tensor) -> memoryview:
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise unexpected(
            "bytes",
            f"{payload.dtype} {list(payload.shape)}",
            "a flat torch.uint8 tensor",
            "pass the received bytes",
        )
    received: npt.NDArray[np.uint8] = payload.detach().cpu().contiguous().numpy()
    return received.data

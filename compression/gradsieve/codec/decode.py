"""From bytes to payloads; nothing is believed, and nothing is touched before everything has been checked."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.codec.checksum import CHECKSUM_BYTES
from gradsieve.codec.faults import unexpected
from gradsieve.codec.header import Bytes, Header, IndexCoding, Refusal, ValueCoding, unpack
from gradsieve.codec.indices import read_indices
from gradsieve.codec.payload import Payload
from gradsieve.codec.values import read_values
from gradsieve.errors import PayloadError


def decode(payload: Tensor, elements: int) -> Payload:
    """Return the contents of exactly one payload (uint8 [bytes]) for a tensor of ``elements`` elements.

    The result owns its memory. Whatever the bytes claim, no more is taken than 100 bytes for each one given:
    2 bits may make a position and a value of 12 bytes, and as many are needed on the way.

    Raises PayloadError, naming the field, what was found and what was expected, for bytes that are truncated,
    corrupted, foreign, of another version or for a tensor of another size.
    """
    data = _bytes(payload)
    decoded, end = _decode(data, 0, elements)
    if end != data.size:
        raise unexpected("length", f"{data.size} bytes", f"{end} bytes", "bytes follow the payload")
    return decoded


def split(buffer: Tensor, payloads: int, elements: int | None = None) -> list[Payload]:
    """Return the contents of ``payloads`` payloads, one after the other in uint8 [bytes] at any alignment.

    ``elements``: size of the tensor that they are for; None: the first one's, which the others must share.

    Raises PayloadError as :func:`decode` does, saying which payload it was, and if bytes are left over.
    """
    data, at = _bytes(buffer), 0
    decoded: list[Payload] = []
    for number in range(payloads):
        try:
            payload, at = _decode(data, at, elements)
        except PayloadError as error:
            raise PayloadError(f"payload {number + 1} of {payloads}: {error}") from error
        elements = payload.elements
        decoded.append(payload)
    if at != data.size:
        raise unexpected(
            "length",
            f"{data.size - at} bytes after {payloads} payloads",
            "none",
            "ranks sent more than one each",
        )
    return decoded


def _decode(data: Bytes, start: int, elements: int | None) -> tuple[Payload, int]:
    """Return the payload that starts at byte ``start``, and where the next one starts."""
    header, at = unpack(data, start)
    if elements is not None and header.elements != elements:
        raise unexpected("elements", header.elements, elements, "run the same model on all ranks")
    end = at + header.body
    if header.refusal is Refusal.NONE:
        values, indices = _contents(header, data, at, end)
    else:
        _require_nothing(header)
        values, indices = torch.empty(0, dtype=torch.float32, device="cpu"), None
    payload = Payload(header.elements, header.epoch, header.refusal, indices, values)
    return payload, end + CHECKSUM_BYTES


def _contents(header: Header, data: Bytes, at: int, end: int) -> tuple[Tensor, Tensor | None]:
    dense = header.index_coding is IndexCoding.DENSE
    if header.count > header.elements or (dense and header.count != header.elements):
        raise unexpected("count", header.count, f"{header.elements} elements", "the payload is corrupted")
    values, at = read_values(header, data, at, end)
    if not dense:
        indices = read_indices(header.index_coding, data, at, end, header.count, header.elements)
        return values, torch.from_numpy(indices)
    if at != end:
        raise unexpected("length", f"{end - at} bytes after the values", "none", "the payload is corrupted")
    return values, None


def _require_nothing(header: Header) -> None:
    codings = (header.index_coding, header.value_coding, header.packed)
    if header.count or header.body or codings != (IndexCoding.DENSE, ValueCoding.FLOAT32, False):
        raise unexpected(
            "refusal",
            f"{header.count} values, {header.body} bytes",
            "nothing behind the header",
            "the payload is corrupted",
        )


def _bytes(payload: Tensor) -> Bytes:
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise unexpected(
            "bytes",
            f"{payload.dtype} {list(payload.shape)}",
            "a flat torch.uint8 tensor",
            "pass the received bytes",
        )
    received: Bytes = payload.detach().cpu().contiguous().numpy()
    return received

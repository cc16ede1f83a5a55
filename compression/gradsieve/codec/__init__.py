"""Selections as bytes and back; the format is written down in docs/wire-format.md."""

from gradsieve.codec.decode import decode, split
from gradsieve.codec.encode import encode, encode_refusal
from gradsieve.codec.header import Refusal
from gradsieve.codec.payload import Payload
from gradsieve.codec.values import ValueDtype, sent_values

__all__ = [
    "Payload",
    "Refusal",
    "ValueDtype",
    "decode",
    "encode",
    "encode_refusal",
    "sent_values",
    "split",
]

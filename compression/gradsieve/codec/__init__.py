"""Selections as bytes and back; the format is written down in docs/wire-format.md."""

from gradsieve.codec.decode import decode, split
from gradsieve.codec.encode import encode, encode_all, encode_refusal, encode_rounded
from gradsieve.codec.estimate import estimated_bytes
from gradsieve.codec.frame import Label, frame, framed, start_bytes, unframe
from gradsieve.codec.header import Refusal
from gradsieve.codec.payload import Payload
from gradsieve.codec.values import ValueDtype, sent_values

__all__ = [
    "Label",
    "Payload",
    "Refusal",
    "ValueDtype",
    "decode",
    "encode",
    "encode_all",
    "encode_refusal",
    "encode_rounded",
    "estimated_bytes",
    "frame",
    "framed",
    "sent_values",
    "split",
    "start_bytes",
    "unframe",
]

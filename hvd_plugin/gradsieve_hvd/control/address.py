"""Where a coordinator listens, as users write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradsieve.errors import ConfigurationError

_ADDRESS = re.compile(r"(?:https://)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:\[\]/]*))(?::(?P<port>\d{1,5}))?/?")


@dataclass(frozen=True)
class Address:
    """Host (empty for all) and port."""

    host: str
    port: int


def parse_address(text: str, port: int) -> Address:
    """Host and port in ``text``: ``HOST:PORT``, ``HOST``, ``[IPv6]:PORT``, also with ``https://`` before it.

    Raises:
        ConfigurationError: it is none of these.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"] or port) < 65536:
        raise ConfigurationError(f"{text!r} is no address: write HOST:PORT, as in trainer-0:{port}")
    return Address(match["six"] or match["host"], int(match["port"] or port))

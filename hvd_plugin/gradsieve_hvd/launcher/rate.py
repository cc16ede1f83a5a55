"""Rates of a link: how they are written, and what they are."""

from __future__ import annotations

import re

from gradsieve.errors import ConfigurationError

_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_UNSHAPED = ("none", "unshaped")
_SLOWEST = 64_000


def parse_rate(text: str) -> int | None:
    """Bits per second of a rate such as ``100mbit``, ``1.5gbit``; None for ``none`` and ``unshaped``.

    Raises:
        ConfigurationError: the text is not a rate, or is below 64 kbit.
    """
    wanted = text.strip().lower()
    if wanted in _UNSHAPED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(bit|kbit|mbit|gbit)(?:/s|ps)?", wanted)
    if match is None:
        raise ConfigurationError(
            f"link rate {text!r} is not understood: write 100mbit, 1gbit, 25mbit or none"
        )
    rate = round(float(match[1]) * _UNITS[match[2]])
    if rate < _SLOWEST:
        raise ConfigurationError(f"link rate {text!r} is below 64kbit, where not even mpirun gets through")
    return rate


def format_rate(rate: int | None) -> str:
    """The rate as :func:`parse_rate` reads it, in its largest whole unit."""
    if rate is None:
        return "unshaped"
    for unit in ("gbit", "mbit", "kbit"):
        if rate % _UNITS[unit] == 0:
            return f"{rate // _UNITS[unit]}{unit}"
    return f"{rate}bit"

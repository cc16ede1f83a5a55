"""Rates of a link: how they are written, and what they are."""

from __future__ import annotations

import re

from gradsieve.errors import ConfigurationError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_UNSHAPED = ("none", "unshaped")
_SLOWEST = 64_000
_RATE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*"
    r"(?P<prefix>[kmg]?)(?P<unit>|bits?|b|bytes?)(?:/s|/sec|ps)?",
    re.IGNORECASE,
)
_BITS_PER_BYTE = 8


def parse_rate(text: str) -> int | None:
    """Bits per second of a rate; None for ``none`` and ``unshaped``.

    ``100mbit``, ``100Mbit/s``, ``100Mb``, ``100mbps`` and ``100M`` are the same: prefixes are powers of 1 000
    in either case, and a bare prefix counts bits, as in iperf. (``tc`` alone reads ``mbps`` as bytes.)

    Raises:
        ConfigurationError: the text is not a rate, counts bytes (``100MB/s``: a capital B), or is below
            64 kbit.
    """
    wanted = text.strip()
    if wanted.lower() in _UNSHAPED:
        return None
    match = _RATE.fullmatch(wanted)
    if match is None or not (match["prefix"] or match["unit"]):
        raise ConfigurationError(
            f"link rate {text!r} is not understood: write 100mbit, 1gbit, 25mbit or none"
        )
    number, prefix, unit = float(match["number"]), match["prefix"].lower(), match["unit"]
    if unit == "B" or unit.lower().startswith("byte"):
        raise ConfigurationError(
            f"link rate {text!r} counts bytes, and a link's rate is given in bits per second: write "
            f"{number * _BITS_PER_BYTE:g}{prefix}bit for that many bytes, or {number:g}{prefix}bit if bits "
            "were meant"
        )
    rate = round(number * _PREFIXES[prefix])
    if rate < _SLOWEST:
        raise ConfigurationError(f"link rate {text!r} is below 64kbit, where not even mpirun gets through")
    return rate


def format_rate(rate: int | None) -> str:
    """The rate as :func:`parse_rate` reads it, in its largest whole unit."""
    if rate is None:
        return "unshaped"
    prefix = next(prefix for prefix in ("g", "m", "k", "") if rate % _PREFIXES[prefix] == 0)
    return f"{rate // _PREFIXES[prefix]}{prefix}bit"

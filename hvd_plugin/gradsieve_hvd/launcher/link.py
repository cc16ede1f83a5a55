"""Which links an emulated network has: one rate for all ranks, and those of ranks whose links differ."""

from __future__ import annotations

from dataclasses import dataclass

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher.rate import format_rate, parse_rate

_FASTEST = 8 * (2**32 - 1)
"""Bits per second: Linux's shaper counts bytes in 32 bits."""


@dataclass(frozen=True)
class Link:
    """The emulated network under a job: one host per rank, each on a link of its own.

    Attributes:
        rate: bits per second in either direction; None leaves the links unshaped.
        others: ranks whose links have another rate, and that rate.
    """

    rate: int | None
    others: tuple[tuple[int, int | None], ...] = ()

    def rate_of(self, rank: int) -> int | None:
        """Return the rate of one rank's link."""
        return dict(self.others).get(rank, self.rate)

    def __str__(self) -> str:
        """As `parse_link` reads it."""
        others = [f"{rank}:{format_rate(rate)}" for rank, rate in self.others]
        return ",".join([format_rate(self.rate), *others])


def parse_link(text: str) -> Link:
    """Return the links of ``100mbit``; of ``100mbit,2:20mbit``, where rank 2's differs; or of ``2:20mbit``,
    where the others are unshaped.

    Raises:
        ConfigurationError: a rate is none, see `parse_rate`, or more than Linux shapes to; a rank is no
            number, or has two rates; or there are two rates for all.
    """
    common, others = [], dict[int, int | None]()
    for part in text.split(","):
        rank, colon, rate = part.partition(":")
        if not colon:
            common.append(_shaped(part))
            continue
        if not rank.strip().isdecimal():
            raise ConfigurationError(f"link {part!r}: {rank!r} is no rank: write 2:20mbit for that of rank 2")
        if int(rank) in others:
            raise ConfigurationError(f"link {text!r}: two rates for rank {int(rank)}")
        others[int(rank)] = _shaped(rate)
    if len(common) > 1:
        raise ConfigurationError(
            f"link {text!r}: {len(common)} rates for all ranks: write 100mbit,2:20mbit where rank 2's differs"
        )
    return Link(common[0] if common else None, tuple(sorted(others.items())))


def _shaped(text: str) -> int | None:
    rate = parse_rate(text)
    if rate is not None and rate > _FASTEST:
        raise ConfigurationError(
            f"link rate {text!r} is above {_FASTEST / 1e9:.1f}gbit, the most that an emulated link is shaped "
            "to: write none for links that are not shaped"
        )
    return rate

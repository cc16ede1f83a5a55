"""Ranks that compute slower than others: how they are written, and who is how slow when. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradsieve.errors import ConfigurationError

WANDERING, TRANSIENT = "wander", "transient"
_SPELL_SECONDS = 15.0
_SLICE_SECONDS = 1.0
_TRANSIENT_SHARE = 0.2
_USED_SHARE = 0.85  # of all cores: the rest is for daemons and the kernel, so that ranks get what is theirs
_TEXT = re.compile(rf"(?P<who>\d+|{WANDERING}|{TRANSIENT}):(?P<factor>\d+(?:\.\d+)?)x?")


@dataclass(frozen=True)
class Straggler:
    """A rank that is slow, or a pattern in which ranks are.

    Attributes:
        who: a rank's number; "wander": one rank at a time, for 15 seconds; "transient": every rank in a
            fifth of all seconds, each by itself.
        factor: how many times as long computing takes then.
    """

    who: int | str
    factor: float

    def slowness(self, rank: int, ranks: int, seconds: float) -> float:
        """Return by how much ``rank`` of ``ranks`` is slowed at a time since the start; 1 if it is not.

        The same in every job: modes can be compared on the same stragglers.
        """
        if self.who == WANDERING:
            slow = random.Random(f"spell {seconds // _SPELL_SECONDS}").randrange(ranks) == rank
        elif self.who == TRANSIENT:
            chance = random.Random(f"rank {rank}, slice {seconds // _SLICE_SECONDS}").random()
            slow = chance < _TRANSIENT_SHARE
        else:
            slow = self.who == rank
        return self.factor if slow else 1.0

    def __str__(self) -> str:
        return f"{self.who}:{self.factor:g}x"


def parse_straggler(text: str) -> Straggler:
    """Return what ``3:4x``, ``wander:4x`` or ``transient:3x`` stands for.

    Raises:
        ConfigurationError: the text is none of these, or the factor is below 1.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    if match is None or float(match["factor"]) < 1:
        raise ConfigurationError(
            f"--slow {text!r} is not understood: write RANK:FACTOR as in 3:4x, {WANDERING}:4x or "
            f"{TRANSIENT}:3x, with a factor of at least 1"
        )
    who = match["who"]
    return Straggler(int(who) if who.isdigit() else who, float(match["factor"]))


def slowness(stragglers: Sequence[Straggler], rank: int, ranks: int, seconds: float) -> float:
    """Return by how much a rank is slowed at a time: the most of what applies to it."""
    return max((each.slowness(rank, ranks, seconds) for each in stragglers), default=1.0)


def full_quota(stragglers: Sequence[Straggler], ranks: int, cores: int) -> float:
    """Return the cores that a rank has when it is not slowed: at most 85 % of them are given out in all, and
    to one rank no more than it has threads (cores divided by ranks, at least 1).
    """
    always = [each for each in stragglers if isinstance(each.who, int)]
    shares = sum(1 / slowness(always, rank, ranks, 0.0) for rank in range(ranks))
    return min(_USED_SHARE * cores / shares, float(max(1, cores // ranks)))

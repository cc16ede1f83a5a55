"""What the exchanges of a round tell of the link: how long each was on the wire, and what of that is sure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradsieve_hvd.choice.costs import rounds_of
from gradsieve_hvd.choice.link_estimate import Timing

from .counted_transport import CountedTransport, Leg


@dataclass(frozen=True, slots=True)
class Travelled:
    """One exchange of a round, done.

    path: that it took. ready_seconds: when each rank's bucket was ready, from the beginning of its round, by
    rank; empty if that is not known. submitted: when this rank had handed it over, by the transport's clock.
    transport: that has carried it, and nothing else.
    """

    path: str
    ready_seconds: Mapping[int, float]
    submitted: float
    transport: CountedTransport


def timings(round_of: Iterable[Travelled], began: float) -> list[Timing]:
    """Return what is known of a round's exchanges, in their order.

    1. What is posted leaves at once, and travels whatever this rank does. It may have to let pass what left
       before: then it begins when that was found, and its start-up is a part of that one's time.
    2. Ranks that hand messages on begin when it is their turn: decoding what came before delays them, and is
       not their own. What they do between two messages, all at the same time, delays these, and is not
       counted.
    3. Other ranks take as long as this one from when their bucket is ready until its message leaves.
    4. An exchange ends when its last message was found. If it was posted, all that this rank has waited was
       certainly spent on the wire; of the time that it worked meanwhile nobody knows.
    5. Of an exchange whose later messages are posted when the first have come, these tell alone: when other
       ranks send the later ones nobody knows.

    began: when the round did, by the transports' clock.
    """
    exchanges = [each for each in round_of if each.transport.legs]
    legs = sorted((leg for each in exchanges for leg in each.transport.legs), key=lambda leg: leg.heard)
    before = {id(leg): sooner.heard for sooner, leg in itertools.pairwise(legs)}
    told = [each for each in exchanges if each.transport.rank in each.ready_seconds]
    firsts = [(each, each.transport.legs[0]) for each in told]
    return [_timing(each, leg, began, before.get(id(leg), began)) for each, leg in firsts]


def _timing(travelled: Travelled, leg: Leg, began: float, before: float) -> Timing:
    """Return what a leg tells; ``before``: when what was found before it was, by the clock."""
    rank, ready = travelled.transport.rank, travelled.ready_seconds
    begins = max(leg.sent_at, before)
    seconds, took = leg.heard - begins, leg.heard - leg.sent_at
    rounds = leg.rounds or rounds_of(travelled.path, travelled.transport.size)
    handing_over = max(travelled.submitted - began - ready[rank], 0.0)
    begun = {other: max(seconds + handing_over, begins - began) for other, seconds in ready.items()}
    begun[rank] = begins - began
    if leg.posted:
        return Timing(rank, leg.sent_bytes, seconds, rounds, begun, leg.waited_seconds, took)
    worked = took - leg.waited_seconds
    return Timing(rank, leg.sent_bytes, seconds - worked, rounds, begun, travelled_seconds=took - worked)

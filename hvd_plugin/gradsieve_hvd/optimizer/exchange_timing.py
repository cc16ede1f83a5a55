"""What the exchanges of a round tell of the link: how long each was on the wire, and what of that is sure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gradsieve_hvd.choice.costs import rounds_of
from gradsieve_hvd.choice.link_estimate import Timing

from .counted_transport import CountedTransport


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


def timings(round_of: Iterable[Travelled], began: float) -> Iterator[Timing]:
    """Yield what is known of a round's exchanges, in their order.

    1. What is posted leaves at once, and travels whatever this rank does. It may have to let the exchange
       before pass: then it begins when that has arrived, and its start-up is a part of that one's time.
    2. Ranks that hand messages on begin when it is their turn: decoding what came before delays them, and is
       not their own. What they do between two messages, all at the same time, delays these, and is not
       counted.
    3. Other ranks take as long as this one from when their bucket is ready until its message leaves.
    4. An exchange ends when its last message was found. If it was posted, all that this rank has waited was
       certainly spent on the wire; of the time that it worked meanwhile nobody knows.

    began: when the round did, by the transports' clock.
    """
    before = 0.0
    for each in round_of:
        transport, ready = each.transport, each.ready_seconds
        rank, heard = transport.rank, transport.heard - began
        if rank in ready:
            sent = transport.sent_at - began
            begins = max(sent, before)
            handing_over = max(each.submitted - began - ready[rank], 0.0)
            begun = {other: max(seconds + handing_over, begins) for other, seconds in ready.items()}
            begun[rank] = begins
            seconds = heard - begins
            rounds = transport.sum_rounds or rounds_of(each.path, transport.size)
            waited = transport.waited_seconds
            if transport.posted:
                yield Timing(rank, transport.sent_bytes, seconds, rounds, begun, waited, queued=sent < before)
            else:
                worked = heard - sent - waited
                yield Timing(rank, transport.sent_bytes, seconds - worked, rounds, begun)
        before = max(before, heard)

"""How long a bucket takes by each path: a model of messages on a link and of work on this machine.

::

    seconds = work: select, encode, decode, add  +  wire: rounds * start-up + bytes / bandwidth

Moving bytes and looking for them is part of the wire's time, but takes a core from what computes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gradsieve.codec import ValueDtype
from gradsieve_hvd.exchange import messages_sent
from gradsieve_hvd.exchange.dense import whole_dtype
from gradsieve_hvd.exchange.messages_sent import Supports, bytes_of, dense_bytes, entries_of


@dataclass(frozen=True, slots=True)
class Link:
    """What carries a rank's messages.

    start_up_seconds: from sending until what is empty has arrived. bytes_per_second: in either direction.
    """

    start_up_seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Seconds that one core of this machine takes, see `gradsieve_hvd.choice.machine`.

    select, add, narrow, factor: per element of the bucket: to accumulate and select; to add two fp32 numbers;
    to round to 16 bits and back; to go through all steps of a factorisation, for one column of the factors.
    encode, decode: per entry. tensor: to select from one, whatever its size. clear: per element, to make room
    for a sum of entries. carry: per element that travels whole, from its gradient into the bucket and back.
    message: to make or to read one of few entries. move: per byte that is sent or
    received, in the system. look: per second on the wire, to see whether something has come.
    """

    select: float
    encode: float
    decode: float
    add: float
    narrow: float
    factor: float
    tensor: float = 0.0
    clear: float = 0.0
    message: float = 0.0
    move: float = 0.0
    look: float = 0.0
    carry: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """A bucket, as far as time depends on it.

    entries: that a rank selects. hot: share of all elements that selections lie in, from ``density`` (all
    ranks select the same) to 1 (independently); see `Supports`. factor_values: of both factors of all its
    matrices together; 0 if none travels by factors. columns: of the factors. tensors: in the bucket, on the
    average. ranks_per_core: that do their work at the same time, so that it takes as many times as long.
    """

    elements: int
    entries: float
    value_dtype: ValueDtype = "float32"
    hot: float = 1.0
    factor_values: int = 0
    columns: int = 4
    tensors: float = 1.0
    ranks_per_core: float = 1.0

    def supports(self) -> Supports:
        """Return how the ranks' selections overlap."""
        return Supports(self.elements, self.entries, max(self.entries, self.hot * self.elements))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one bucket by one path, for one rank.

    work_seconds: until it can be sent, and after it has arrived. wire_seconds: until everything has arrived,
    but for the work between messages, between_seconds. wire_bytes: sent. move_seconds: of a core, from the
    first message to the last.
    """

    work_seconds: float
    wire_seconds: float
    wire_bytes: float
    between_seconds: float = 0.0
    move_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a bucket whose exchange is waited for."""
        return self.work_seconds + self.travel_seconds

    @property
    def travel_seconds(self) -> float:
        """From the first message to the last."""
        return self.wire_seconds + self.between_seconds


_Model = Callable[[Load, int, Link, WorkRates], Cost]


def predict(path: str, load: Load, ranks: int, link: Link, rates: WorkRates) -> Cost:
    """Return what a bucket costs by a path, one of `PATHS`.

    1. Bytes are those of `gradsieve_hvd.exchange.messages_sent`.
    2. Every round of messages that must wait for the one before costs a start-up.
    3. Work is counted in elements, entries, tensors and messages. Ranks that share a core wait for each
       other's. What is done between two messages delays the next one, and takes a core meanwhile.
    """
    cost = PATHS[path](load, ranks, link, rates)
    moving = 2 * cost.wire_bytes * rates.move + cost.wire_seconds * rates.look  # as much is received
    between = load.ranks_per_core * cost.between_seconds
    return replace(
        cost,
        work_seconds=load.ranks_per_core * cost.work_seconds,
        between_seconds=between,
        move_seconds=load.ranks_per_core * moving + between,
    )


def rounds_of(path: str, ranks: int) -> int:
    """Return how many messages must wait for one another."""
    return _ROUNDS[path](ranks)


def _cost(path: str, work: float, sent: float, ranks: int, link: Link, between: float = 0.0) -> Cost:
    start_ups = rounds_of(path, ranks) * link.start_up_seconds
    return Cost(work, start_ups + sent / link.bytes_per_second, sent, between)


def _around(ranks: int) -> int:
    """Return the rounds of a reduce-scatter and an all-gather around a ring."""
    return 2 * (ranks - 1)


def _at_once(ranks: int) -> int:
    return min(ranks - 1, 1)


def _by_blocks(ranks: int) -> int:
    """Return the rounds of an all-to-all and an all-gather."""
    return 2 * _at_once(ranks)


_ROUNDS: Final[Mapping[str, Callable[[int], int]]] = {
    "dense": _around,
    "fp16": _by_blocks,
    "bf16": _by_blocks,
    "lowrank": lambda ranks: 2 * _around(ranks),  # Q waits for P
    "allgather": _at_once,
    "ring": _around,
    "scatter": _by_blocks,  # one of many exchanges counts first where entries lie
}


def _dense(load: Load, ranks: int, link: Link, rates: WorkRates) -> Cost:
    added, work = load.elements * (ranks - 1) / ranks, rates.carry * load.elements
    return _cost("dense", work, dense_bytes(load.elements, ranks), ranks, link, rates.add * added)


_NARROWED_AGAIN = 0.5  # of what encoding and decoding all values takes


def _half(load: Load, ranks: int, link: Link, rates: WorkRates) -> Cost:
    whole = _dense(load, ranks, link, rates)
    work = rates.narrow * load.elements
    # Each rank decodes all others' parts of its block, and encodes the sum: together what N values take.
    between = whole.between_seconds + _NARROWED_AGAIN * _at_once(ranks) * work
    work += whole.work_seconds
    return _cost("fp16", work, dense_bytes(load.elements, ranks, bytes_per_value=2), ranks, link, between)


def _lowrank(load: Load, ranks: int, link: Link, rates: WorkRates) -> Cost:
    work = (rates.factor * load.columns + rates.carry) * load.elements
    width = 4 if whole_dtype(load.value_dtype) == "float32" else 2
    sent = dense_bytes(load.factor_values, ranks, bytes_per_value=width)
    return _cost("lowrank", work, sent, ranks, link)


def _sparse(name: str, *, bounded: bool = False) -> _Model:
    def cost(load: Load, ranks: int, link: Link, rates: WorkRates) -> Cost:
        most = load.entries if bounded else None
        messages = list(messages_sent.PATHS[name](load.supports(), ranks, most))
        received = entries_of(messages)
        # The last message is the one that an all-gather hands on as it is.
        encoded = entries_of([*messages[:-1], replace(messages[-1], times=1)])
        selecting = (rates.select + rates.clear) * load.elements + rates.tensor * load.tensors
        handled = 2 * sum(each.times for each in messages)  # as many are received
        work = selecting + rates.encode * encoded + rates.decode * received + rates.message * handled
        return _cost(name, work, bytes_of(messages, load.value_dtype), ranks, link)

    return cost


PATHS: Final[Mapping[str, _Model]] = {
    "dense": _dense,
    "fp16": _half,
    "bf16": _half,
    "lowrank": _lowrank,
    "allgather": _sparse("allgather"),
    "ring": _sparse("ring"),
    "scatter": _sparse("scatter", bounded=True),
}

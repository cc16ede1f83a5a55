"""A whole model's step by every path, predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gradsieve.codec import ValueDtype
from gradsieve_hvd.choice.costs import PATHS, Link, Load, WorkRates, predict
from gradsieve_hvd.choice.schedule import step_time

Row = dict[str, Any]
UNSHAPED_BITS = 4_000_000_000
"""Among ranks of one machine: a dense sum of 6.1 million values on 4 of them took 71 ms over mpi4py."""
START_UP_SECONDS = 5e-4
"""Of a link, unless it is told."""
_BITS_PER_BYTE = 8
_FRAME_BYTES, _CARRIED_BYTES = 1514, 1448  # of an Ethernet frame, and of what TCP carries in it
_BUCKET_ELEMENTS = 1 << 20  # as the optimizer cuts them
_CROWDED = 1.2
"""How many times what its bytes need an all-gather of more than two ranks takes on the wire **(r)**. All send
to all at once; TCP shares a link unevenly among its connections, and a rank's link rests while what it has
left is for one that is behind. Four ranks over 10, 20 and 50 Mbit/s: 1.27, 1.22, 1.22; eight over 10: 1.19.
What has rounds that wait for each other evens that out: scatter 1.02 to 1.06, a ring 1.0."""
_TWO = 2
_MATRIX_SIDE = 512  # of the usual matrix of a model (r)
APPLIED = {
    "whole gradients": ("dense", "fp16", "bf16"),
    "all entries that some rank selects": ("allgather", "ring"),
    "as many entries as one rank selects": ("scatter",),
    "matrices of low rank": ("lowrank",),
}
"""Paths by what they apply: only those of one kind carry the same."""
WHOLE = APPLIED["whole gradients"]


@dataclass(frozen=True)
class Question:
    """compute_seconds: of a step without exchanging, of all ranks at once. columns: of the factors of
    "lowrank". tensors: that are compressed; 0 for one per bucket. ranks_per_core: see `Load`. whole_elements:
    of tensors that are too small to be compressed, in one more bucket.
    """

    elements: int
    ranks: int
    compute_seconds: float
    density: float = 0.01
    value_dtype: ValueDtype = "float32"
    hot: float = 1.0
    columns: int = 4
    tensors: int = 0
    ranks_per_core: float = 1.0
    whole_elements: int = 0

    def bucket(self, elements: int) -> Load:
        """Return the load of a bucket of so many of the model's elements."""
        side = min(_MATRIX_SIDE, max(math.isqrt(elements), 1))
        factors = round(2 * self.columns * elements / side)
        return Load(
            elements,
            self.density * elements,
            self.value_dtype,
            max(self.hot, self.density),
            min(factors, elements),
            self.columns,
            self.tensors * elements / self.elements if self.tensors else 1.0,
            self.ranks_per_core,
        )


def link_of(bits_per_second: int | None, start_up_seconds: float = START_UP_SECONDS) -> Link:
    """Return a link of that rate; None for ranks of one machine."""
    carried = 1.0 if bits_per_second is None else _CARRIED_BYTES / _FRAME_BYTES
    return Link(start_up_seconds, carried * (bits_per_second or UNSHAPED_BITS) / _BITS_PER_BYTE)


def link_as_used(path: str, ranks: int, link: Link) -> Link:
    """Return what a path gets of a link; `auto`, which has it from exchanges, needs no such thing."""
    if path != "allgather" or ranks <= _TWO:
        return link
    return replace(link, bytes_per_second=link.bytes_per_second / _CROWDED)


def predictions(question: Question, link: Link, rates: WorkRates) -> Iterator[Row]:
    """Yield a row per path: path, step_seconds, compute_seconds, work_seconds, exposed_seconds, wire_bytes
    (sent by a rank in a step), times_dense (how many times faster than dense).
    """
    dense = None
    for path in PATHS:
        used = link_as_used(path, question.ranks, link)
        loads = buckets(question)
        known = {load: predict(path, load, question.ranks, used, rates) for load in set(loads)}
        costs = [known[load] for load in loads]
        if question.whole_elements:
            whole = Load(question.whole_elements, 0, ranks_per_core=question.ranks_per_core)
            costs.append(predict("dense", whole, question.ranks, link, rates))
        time = step_time(question.compute_seconds, costs)
        dense = dense or time.seconds
        yield {
            "path": path,
            "step_seconds": time.seconds,
            "compute_seconds": question.compute_seconds,
            "work_seconds": time.work_seconds,
            "exposed_seconds": time.exposed_seconds,
            "wire_bytes": sum(cost.wire_bytes for cost in costs),
            "times_dense": dense / time.seconds,
        }


def buckets(question: Question) -> list[Load]:
    """Return the loads of the buckets that the model is cut into, of about equal size."""
    count = max(round(question.elements / _BUCKET_ELEMENTS), 1)
    whole, rest = divmod(question.elements, count)
    return [question.bucket(whole + 1)] * rest + [question.bucket(whole)] * (count - rest)

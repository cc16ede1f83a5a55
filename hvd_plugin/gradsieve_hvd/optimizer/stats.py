"""What an optimizer's last round sent, and where its time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradsieve_hvd.engine.parameters import ParameterState
from gradsieve_hvd.exchange.messages_sent import dense_bytes

from .buckets import Bucket, DenseBucket, FactoredBucket, SparseBucket
from .exchange_thread import Pending
from .round_clock import RoundClock, RoundSeconds


@dataclass(frozen=True, slots=True)
class BucketStats:
    """One bucket of a round, as one rank saw it.

    name: of the bucket. path: it took. elements: in it. kept: of them, how many this rank sent; all, where
    nothing is selected. kept_energy: squared norm of what was sent over that of all there was to send, in
    [0, 1], when that was last measured; None if it never was. sent_bytes: by this rank. exchange_seconds:
    from when the bucket was ready, and the one before had arrived, until it had arrived: waiting for other
    ranks included.
    """

    name: str
    path: str
    elements: int
    kept: int
    kept_energy: float | None
    sent_bytes: int
    exchange_seconds: float

    @property
    def density(self) -> float:
        """Kept over all."""
        return self.kept / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True)
class OptimizerStats:
    """The last round of one rank.

    step: optimizer steps before it. payload_bytes: sent by this rank, by all buckets. dense_bytes: what a
    bandwidth-optimal all-reduce of fp32 gradients would have sent. Seconds: see `RoundSeconds`;
    exchange_seconds: of all buckets, which mostly pass while backward goes on.
    """

    step: int = 0
    payload_bytes: int = 0
    dense_bytes: float = 0.0
    step_seconds: float = 0.0
    selection_seconds: float = 0.0
    encoding_seconds: float = 0.0
    exchange_seconds: float = 0.0
    exposed_seconds: float = 0.0
    buckets: Sequence[BucketStats] = ()

    def figures(self) -> Mapping[str, float]:
        """Return all but those of buckets, by name."""
        return {
            "payload_bytes": self.payload_bytes,
            "dense_bytes": self.dense_bytes,
            "step_seconds": self.step_seconds,
            "selection_seconds": self.selection_seconds,
            "encoding_seconds": self.encoding_seconds,
            "exchange_seconds": self.exchange_seconds,
            "exposed_seconds": self.exposed_seconds,
        }


def stats_of(
    launched: Sequence[tuple[Bucket, Pending[Any]]],
    states: Mapping[str, ParameterState],
    clock: RoundClock,
    path: str,
    step: int,
) -> OptimizerStats:
    """Return those of the round that has just ended.

    path: of compressed gradients.
    """
    buckets = list(_buckets(launched, states, path))
    spent: RoundSeconds = clock.last
    ranks = launched[0][1].transport.size
    return OptimizerStats(
        step=step,
        payload_bytes=sum(each.sent_bytes for each in buckets),
        dense_bytes=dense_bytes(sum(each.elements for each in buckets), ranks),
        step_seconds=spent.total,
        selection_seconds=spent.selection,
        encoding_seconds=spent.encoding,
        exchange_seconds=sum(each.exchange_seconds for each in buckets),
        exposed_seconds=spent.exposed,
        buckets=buckets,
    )


def _buckets(
    launched: Sequence[tuple[Bucket, Pending[Any]]],
    states: Mapping[str, ParameterState],
    path: str,
) -> Iterator[BucketStats]:
    before = 0.0
    for bucket, pending in launched:
        arrived, elements = pending.transport.heard, sum(bucket.sizes.values())
        seconds = max(arrived - max(pending.submitted, before), 0.0)
        before = max(before, arrived)
        kept, energy = elements, None if isinstance(bucket, FactoredBucket) else 1.0
        if isinstance(bucket, SparseBucket):
            layers = [layer for name in bucket.sizes if (layer := states[name].layer) is not None]
            kept, energy = sum(layer.kept for layer in layers), _energy([layer.energies for layer in layers])
        taken = "dense" if isinstance(bucket, DenseBucket) else path
        yield BucketStats(bucket.name, taken, elements, kept, energy, pending.transport.sent_bytes, seconds)


def _energy(energies: Sequence[tuple[float, float] | None]) -> float | None:
    """Return the share of all tensors together, given what was sent of each and all there was."""
    known = [each for each in energies if each is not None]
    everything = sum(whole for _, whole in known)
    if len(known) < len(energies) or not everything:
        return None
    return min(sum(sent for sent, _ in known) / everything, 1.0)

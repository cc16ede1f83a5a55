"""What rounds of local steps sent, and where their time went."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gradsieve import SparseGradient
from gradsieve_hvd.exchange.messages_sent import dense_bytes
from gradsieve_hvd.optimizer.counted_transport import CountedTransport
from gradsieve_hvd.optimizer.stats import BucketStats, OptimizerStats


@dataclass(frozen=True, slots=True)
class LocalStats(OptimizerStats):
    """The last round of one rank, and all before it.

    step: local steps of this rank so far, in rounds that were applied. payload_bytes: sent in the last round.
    dense_bytes: what all-reduces of fp32 gradients at each of its steps would have sent. step_seconds: of the
    whole round; exchange_seconds, exposed_seconds: of its end, waiting for other ranks included.

    rounds: so far. local_steps: of this rank in the last round. total_payload_bytes: of all rounds.
    """

    rounds: int = 0
    local_steps: int = 0
    total_payload_bytes: int = 0

    def after(self, *, steps: int, computing: float, ending: float) -> LocalStats:
        """Return it with a round more, of so many steps and seconds."""
        return dataclasses.replace(
            self,
            step=self.step + steps,
            rounds=self.rounds + 1,
            local_steps=steps,
            total_payload_bytes=self.total_payload_bytes + self.payload_bytes,
            step_seconds=computing + ending,
            exchange_seconds=ending,
            exposed_seconds=ending,
        )


def stats_of(before: LocalStats, sent: SparseGradient, transport: CountedTransport, steps: int) -> LocalStats:
    """Return statistics with what an exchange sent."""
    bucket = BucketStats(
        "pseudo-gradient", "allgather", sent.elements, sent.count, None, transport.sent_bytes, 0.0
    )
    return dataclasses.replace(
        before,
        payload_bytes=transport.sent_bytes,
        dense_bytes=steps * dense_bytes(sent.elements, transport.size),
        buckets=[bucket],
    )

"""How the ranks of a TrainingState talk to each other: small messages that all of them send together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradsieve_hvd.transport.horovod_allgather import HorovodMessages

Answer = dict[str, Any]


class Ranks:
    """A Horovod process set. timeout: seconds that a message may take.

    Raises, from every method: ExchangeError if a rank did not answer in time.
    """

    def __init__(self, process_set: Any, timeout: float) -> None:
        self._messages = HorovodMessages(process_set, timeout)
        self.timeout = timeout
        self.rank = self._messages.rank
        self.size = self._messages.size

    def gather(self, answer: Answer) -> list[Answer]:
        """Return everybody's JSON-able answer, in the order of ranks."""
        return [json.loads(message) for message in self.gather_bytes(json.dumps(answer).encode())]

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return everybody's bytes, in the order of ranks."""
        return self._messages.tell(content, "training-state").wait()


def told(answers: Sequence[Answer], field: str) -> str:
    """Who said what in a field; empty if nobody said anything."""
    return "; ".join(f"rank {rank}: {answer[field]}" for rank, answer in enumerate(answers) if answer[field])

"""What every rank tells at the end of a round, and what follows: all ranks judge the same reports alike."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from gradsieve.errors import ExchangeError, NonFiniteGradient, PayloadError, RankMismatch

Ending = Literal["all steps", "synchronize()", "finish()"]
_CHECKSUM_BYTES = 4
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's round.

    ending: why it ends. steps: local ones in it. weights: hash of those that it began with; None if nobody
    compares. nonfinite: tensors with NaN or infinity. problem: what this rank could not read of the others'.
    """

    ending: Ending
    steps: int
    weights: int | None = None
    nonfinite: tuple[str, ...] = ()
    problem: str = ""

    def packed(self) -> bytes:
        """Return it as bytes, with a checksum."""
        body = json.dumps(asdict(self)).encode()
        return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body

    @classmethod
    def unpacked(cls, message: bytes, rank: int) -> Report:
        """Return what a rank packed.

        Raises:
            PayloadError: the bytes are not a report.
        """
        body = message[_CHECKSUM_BYTES:]
        if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") != message[:_CHECKSUM_BYTES]:
            raise PayloadError(f"rank {rank}: its report on a round of local steps is corrupted (checksum)")
        fields = json.loads(body)
        return cls(**{**fields, "nonfinite": tuple(fields["nonfinite"])})


def judge(reports: Sequence[Report], number: int) -> None:
    """Raise what all ranks have to know of a round before anything of it is applied; ``reports`` by rank.

    Differing weights are left to the caller, who can find out which.

    Raises:
        RankMismatch: some ranks ended the round by ``synchronize()`` and others did not.
        NonFiniteGradient: a rank had NaN or infinity.
        ExchangeError: a rank could not read what it was sent.
    """
    endings = {report.ending for report in reports}
    if "synchronize()" in endings and len(endings) > 1:
        told = ", ".join(
            f"rank {rank} by {each.ending} after {each.steps}" for rank, each in enumerate(reports[:_SHOWN])
        )
        raise RankMismatch(
            f"the ranks end round {number} of local steps in different ways: {told}. Call synchronize() on "
            "all ranks after the same steps; a rank that has run out of data calls finish()."
        )
    bad = [(rank, name) for rank, each in enumerate(reports) for name in each.nonfinite]
    if bad:
        named = ", ".join(f"'{name}' on rank {rank}" for rank, name in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise NonFiniteGradient(
            f"NaN or infinity in the local steps of round {number}, in {named}{more}. Nothing of the round "
            "was applied: weights are those that it began with, on all ranks, and residuals as before; the "
            "next round may go on. Check loss and learning rate, and the state of the optimizer on that rank."
        )
    problems = [f"rank {rank}: {each.problem}" for rank, each in enumerate(reports) if each.problem]
    if problems:
        raise ExchangeError(
            f"round {number} of local steps was not applied, on no rank: {'; '.join(problems)}. Weights are "
            "those that it began with."
        )

"""What a rank would receive in a step if it sent more or fewer entries, by the codecs' own formulas."""

from __future__ import annotations

from typing import Final

from gradsieve.codec import estimated_bytes
from gradsieve_hvd.engine.statistics import StepStatistics

FACTORS: Final = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 16.0, 64.0)
"""To the present density. In between bytes are nearly straight lines."""


def received_at_other_densities(received: int, sent: StepStatistics) -> list[dict[str, float]]:
    """Return ``factor`` to the present density and ``receivedBytesPerStep``, by ascending factor.

    1. As `gradsieve advise` counts bytes: positions of few entries take more bits each than those of many,
       and no payload is larger than the whole gradient.
    2. Relative to what was measured now, so that it does not matter how many ranks and messages there are.

    Empty where nothing is compressed, or nobody tells what is received: with local steps and with parameter
    servers. A ring's sums, in which entries of several ranks coincide, grow somewhat less than this.

    Args:
        received: by a rank in the last step, the mean over ranks.
        sent: by this rank in it.
    """
    if not received or not sent.kept or sent.kept > sent.elements:
        return []
    now = estimated_bytes(sent.elements, sent.kept, "float32")
    told = []
    for factor in FACTORS:
        kept = min(round(factor * sent.kept), sent.elements)
        if not kept:
            continue
        size = estimated_bytes(sent.elements, kept, "float32") if factor != 1.0 else now
        told.append({"factor": kept / sent.kept, "receivedBytesPerStep": round(received * size / now)})
        if kept == sent.elements:
            break
    return told

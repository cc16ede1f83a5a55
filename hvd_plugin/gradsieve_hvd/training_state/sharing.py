"""The common part of a commit on its way from the rank that has it to those that do not."""

from __future__ import annotations

from gradsieve_hvd.training_state.files import Opened
from gradsieve_hvd.training_state.ranks import Ranks

_CHUNK_BYTES = 32 << 20  # what ranks that need nothing have to make room for, again and again


def send(opened: Opened, ranks: Ranks) -> None:
    """Send the file's common part to all ranks, each of which calls `receive`.

    Raises:
        ExchangeError: a rank did not answer in time.
    """
    for start in range(0, opened.header.shared.size, _CHUNK_BYTES):
        ranks.gather_bytes(opened.shared_part(start, start + _CHUNK_BYTES))
    ranks.gather_bytes(b"")


def receive(source: int, wanted: bool, ranks: Ranks) -> bytearray | None:
    """Return what ``source`` sends; None, keeping nothing, unless it is ``wanted``.

    Raises:
        ExchangeError: a rank did not answer in time.
    """
    whole = bytearray()
    while chunk := ranks.gather_bytes(b"")[source]:
        if wanted:
            whole += chunk
    return whole if wanted else None

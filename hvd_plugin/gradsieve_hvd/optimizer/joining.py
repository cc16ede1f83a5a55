"""Ranks that have run out of data while others train on.

::

    a rank's join(): round ─► round ─► ... ─► the round in which all have joined ─► state of the last one
                      │         │
                      └ verdict └ verdict: was the step taken?

A bucket carries one element more, in which ranks that have joined are counted: while nobody has, that costs
nothing. In rounds in which some have, those that train tell them whether they took the step, so that all go
on in the same one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import torch

from .messages import ThreadMessages

_TAKEN, _SKIPPED, _JOINED = b"taken", b"skipped", b""


class Joining:
    """Who has joined, as one rank knows it.

    joined: whether this rank has. absent: how many ranks had in the last round.
    """

    def __init__(self, messages: ThreadMessages) -> None:
        self._messages = messages
        self.joined, self.absent = False, 0
        self._owes_verdict = False
        self._behind = 0  # steps that were taken without this rank

    @property
    def all_joined(self) -> bool:
        """Whether nobody trains any more; the same on all ranks."""
        return self.absent == self._messages.size

    def restart(self) -> None:
        """Forget who had joined: the ranks may be others than before."""
        self.joined, self.absent, self._owes_verdict, self._behind = False, 0, False, 0

    def counted(self, absent: int | None) -> None:
        """A round is over in which so many ranks had joined; None if that got lost: as many as before."""
        self.absent = self.absent if absent is None else absent
        self._owes_verdict = bool(self.absent) and not self.all_joined

    def tell(self, *, taken: bool) -> None:
        """Tell ranks that have joined, if there are any, what became of the step; nobody waits."""
        if self._owes_verdict:
            self._owes_verdict = False
            self._messages.tell(_TAKEN if taken else _SKIPPED, "verdict")
            self._messages.flush()

    def was_taken(self) -> bool:
        """Wait until those that train have taken the step or skipped it; for a rank that has joined.

        Raises:
            ExchangeError: a rank did not tell in time.
        """
        self._owes_verdict = False
        taken = _TAKEN in self._messages.tell(_JOINED, "verdict").wait()
        self._behind += taken
        return taken

    def end(self, state: Callable[[], Any]) -> tuple[int, Any]:
        """Return the rank that joined last (of several the highest), and what ``state()`` says there, for
        ranks that are behind; None if none is. All ranks call it when all have joined.

        state: what ``torch.load(weights_only=True)`` can read.

        Raises:
            ExchangeError: a rank did not tell in time.
        """
        told = self._messages.tell(json.dumps(self._behind).encode(), "joined").wait()
        behind = [json.loads(each) for each in told]
        last = max(range(len(behind)), key=lambda rank: (-behind[rank], rank))
        mine, self._behind, self.absent = self._behind, 0, 0
        if not any(behind):
            return last, None
        content = io.BytesIO()
        if self._messages.rank == last:
            torch.save(state(), content)
        sent = self._messages.tell(content.getvalue(), "state").wait()[last]
        if not mine:
            return last, None
        return last, torch.load(io.BytesIO(sent), map_location="cpu", weights_only=True)

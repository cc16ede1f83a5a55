"""How all ranks together go on from a commit."""

from __future__ import annotations

import io
import secrets
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsieve.errors import StateError
from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.agreement import Restoration, newer
from gradsieve_hvd.training_state.header import Unusable
from gradsieve_hvd.training_state.ranks import Ranks, told
from gradsieve_hvd.training_state.reports import agree_on, durable_report, report_of
from gradsieve_hvd.training_state.sharing import receive, send
from gradsieve_hvd.training_state.snapshot import Training
from gradsieve_hvd.training_state.store import Folder


@dataclass(frozen=True, slots=True)
class Restored:
    """step: 0 if there was nothing. run: number of what begins now. neighbours: ranks of this folder."""

    step: int
    run: int
    neighbours: frozenset[int]


def restore(training: Training, memory: Folder, durable: Folder | None, ranks: Ranks) -> Restored:
    """Take over the newest commit that all surviving ranks have; called by all ranks.

    1. Tell each other what is there, in memory and in the durable folder; see `agreement.agree`. The later
       step wins, memory in case of a tie.
    2. Read and check it. If a rank cannot, start again without that file.
    3. Ranks without a file get the common part from one that has it. They, and all ranks when their number
       has changed, start without residuals.
    4. Delete this rank's later commits: they are not this training's any more. Of ranks that were here under
       other numbers, only the newest commit stays until there are new ones: more would not leave enough room.

    Raises:
        StateError: on every rank: a folder cannot be used, or a rank could not take the state over.
        ExchangeError: a rank did not answer.
    """
    problem = _prepare(memory, durable)
    unusable: set[Path] = set()
    token = secrets.randbits(63)
    while True:
        answers = ranks.gather(
            {
                "problem": problem,
                "run": token,
                "memory": None if problem else report_of(memory, unusable),
                "durable": None
                if problem or durable is None
                else durable_report(durable, ranks.rank, unusable),
            }
        )
        if problems := told(answers, "problem"):
            raise StateError(f"cannot restore: {problems}")
        from_memory, from_durable = agree_on(answers, "memory"), agree_on(answers, "durable")
        choice = newer(from_memory, from_durable)
        folder = memory if durable is None or choice is from_memory else durable
        if choice is None or _Attempt(training, folder, choice, ranks).succeeds(unusable):
            break
    step = 0 if choice is None else choice.step
    for one in (memory, durable):
        if one is not None:
            one.forget_after(step)
    place = answers[ranks.rank]["memory"]["place"]
    here = frozenset(rank for rank, answer in enumerate(answers) if answer["memory"]["place"] == place)
    memory.forget_others(here, but_up_to=step)
    return Restored(step, int(answers[0]["run"]), here)


def _prepare(memory: Folder, durable: Folder | None) -> str:
    """Make the folders; return what went wrong."""
    try:
        memory.create()
        memory.require_private()
        if durable is not None:
            durable.create()
    except StateError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """To go on from one commit, which may turn out not to be readable."""

    training: Training
    folder: Folder
    choice: Restoration
    ranks: Ranks

    def succeeds(self, unusable: set[Path]) -> bool:
        """Take the commit over; False, changing only ``unusable``, if some rank cannot read its file."""
        taken = self.choice.takes[self.ranks.rank]
        opened = shared = own = None
        problem = ""
        if taken is not None:
            path = self.folder.path_of(taken)
            try:
                opened = files.Opened(path)
                own = opened.load_own()
                shared = opened.load_shared() if self._complete else None
            except Unusable as reason:
                problem = f"{path}: {reason}"
                unusable.add(path)
        if problems := told(self.ranks.gather({"problem": problem}), "problem"):
            if self.ranks.rank == 0:
                _warn(f"the commit of step {self.choice.step} is skipped: {problems}")
            return False
        self._take_over(self._completed(shared, opened), own)
        return True

    @property
    def _complete(self) -> bool:
        return self.ranks.rank in self.choice.complete

    def _completed(self, shared: Any, opened: files.Opened | None) -> Any:
        """Return the common part, on the ranks that lack it as the source sends it."""
        if len(self.choice.complete) == self.ranks.size:
            return shared
        if self.ranks.rank == self.choice.source:
            assert opened is not None
            send(opened, self.ranks)
            return shared
        received = receive(self.choice.source, not self._complete, self.ranks)
        return shared if received is None else files.load(io.BytesIO(received))

    def _take_over(self, shared: Any, own: Any) -> None:
        taken, rank, step = self.choice.takes[self.ranks.rank], self.ranks.rank, self.choice.step
        if taken is None:
            _warn(
                f"rank {rank} has no commit of step {step}: it goes on from the weights of rank "
                f"{self.choice.source}, without residuals"
            )
        elif taken.size != self.ranks.size:
            _warn(
                f"rank {rank}: step {step} was committed by {taken.size} ranks and is restored by "
                f"{self.ranks.size}: it goes on without residuals"
            )
            own = None
        problem = ""
        try:
            self.training.apply(shared, own)
        except Exception as error:  # noqa: BLE001 - whatever a user's object raises, every rank must hear of it
            problem = f"{type(error).__name__}: {error}"
        if problems := told(self.ranks.gather({"problem": problem}), "problem"):
            raise StateError(f"step {step} does not fit this training: {problems}")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)

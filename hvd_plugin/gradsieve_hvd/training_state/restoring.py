"""How all ranks together go on from a commit."""

from __future__ import annotations

import io
import logging
import secrets
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsieve.errors import StateError
from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.agreement import Restoration, newer
from gradsieve_hvd.training_state.header import Unusable
from gradsieve_hvd.training_state.lost_mass import NOTHING_LOST, LostMass, lost_mass
from gradsieve_hvd.training_state.ranks import Ranks, told
from gradsieve_hvd.training_state.reports import agree_on, durable_report, report_of
from gradsieve_hvd.training_state.sharing import receive, send
from gradsieve_hvd.training_state.snapshot import Training
from gradsieve_hvd.training_state.store import Folder

_log = logging.getLogger("gradsieve.training_state")


@dataclass(frozen=True, slots=True)
class Restored:
    """step: 0 if there was nothing. run: number of what begins now. neighbours: ranks of this folder. lost:
    what ranks that are gone owed.
    """

    step: int
    run: int
    neighbours: frozenset[int]
    lost: LostMass = NOTHING_LOST


def restore(training: Training, memory: Folder, durable: Folder | None, ranks: Ranks) -> Restored:
    """Take over the newest commit that all surviving ranks have; called by all ranks.

    1. Tell each other what is there, in memory and in the durable folder; see `agreement.agree`. The later
       step wins, memory in case of a tie.
    2. Read and check it. If a rank cannot, start again without that file.
    3. Ranks without a file get the common part from one that has it, and start without residuals. When the
       number of ranks has changed, residuals go on so that they owe as much; see `engine.checkpoint`.
    4. Rank 0 logs what is lost of residuals that no rank has any more.
    5. Delete this rank's later commits: they are not this training's any more. Of ranks that were here under
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
        if choice is None:
            break
        attempt = _Attempt(training, folder, choice, ranks)
        if attempt.succeeds(unusable):
            break
    step = 0 if choice is None else choice.step
    for one in (memory, durable):
        if one is not None:
            one.forget_after(step)
    place = answers[ranks.rank]["memory"]["place"]
    here = frozenset(rank for rank, answer in enumerate(answers) if answer["memory"]["place"] == place)
    memory.forget_others(here, but_up_to=step)
    lost = NOTHING_LOST if choice is None else attempt.lost
    if lost.ranks and ranks.rank == 0:
        _log.warning("step %d: %s", step, lost)
    return Restored(step, int(answers[0]["run"]), here, lost)


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


@dataclass(slots=True)
class _Attempt:
    """To go on from one commit, which may turn out not to be readable. lost: once it has succeeded."""

    training: Training
    folder: Folder
    choice: Restoration
    ranks: Ranks
    lost: LostMass = NOTHING_LOST

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
        keeps_residuals = not self.training.is_served  # else one rank has committed for all, and nobody's
        if keeps_residuals and (remark := self._remark()):
            _warn(remark)
        problem = ""
        try:
            self.training.apply(shared, own)
        except Exception as error:  # noqa: BLE001 - whatever a user's object raises, every rank must hear of it
            problem = f"{type(error).__name__}: {error}"
        owed = [] if own is None else own.get("owed", [])
        answers = self.ranks.gather({"problem": problem, "owed": owed})
        if problems := told(answers, "problem"):
            raise StateError(f"step {self.choice.step} does not fit this training: {problems}")
        if keeps_residuals:
            self.lost = lost_mass(self.choice, next((each["owed"] for each in answers if each["owed"]), []))

    def _remark(self) -> str:
        """Say what becomes of this rank's residual, if it does not just go on."""
        taken, rank, step = self.choice.takes[self.ranks.rank], self.ranks.rank, self.choice.step
        if taken is None:
            return (
                f"rank {rank} has no commit of step {step}: it goes on from the weights of rank "
                f"{self.choice.source}, without residuals"
            )
        if taken.size != self.ranks.size:
            return (
                f"rank {rank}: step {step} was committed by {taken.size} ranks and is restored by "
                f"{self.ranks.size}: its residual goes on and owes the mean as much as before"
            )
        return ""


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)

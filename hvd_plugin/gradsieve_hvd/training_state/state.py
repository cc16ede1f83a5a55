"""Commits that a training goes on from after ranks, hosts or all of them were lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gradsieve.density import is_count, plain_count
from gradsieve.errors import ConfigurationError, RankMismatch, StateError
from gradsieve_hvd.control import contract
from gradsieve_hvd.control.plan import has_coordinator
from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.durable import DurableCopies
from gradsieve_hvd.training_state.header import Commit, Unusable
from gradsieve_hvd.training_state.lost_mass import NOTHING_LOST, LostMass
from gradsieve_hvd.training_state.ranks import Answer, Ranks, told
from gradsieve_hvd.training_state.restoring import Restored, restore
from gradsieve_hvd.training_state.snapshot import Stateful, Training
from gradsieve_hvd.training_state.store import Folder


class TrainingState:
    """A training's state, committed to memory that outlives the process, and restored from there.

    ::

        state = gradsieve_hvd.TrainingState(model, optimizer, scheduler=scheduler, every=10)
        for step in range(state.restore(), steps):
            ...
            optimizer.step()
            state.commit(step + 1)

    Every rank makes one, and calls its methods together with the others (`commit` only where ranks step
    together). It covers the model, the optimizer,
    what gradsieve's compressor remembers, the random number generators of Python, NumPy and torch, and:

    - ``extra`` arguments with ``state_dict`` and ``load_state_dict`` (schedulers, scalers, samplers);
    - all other ``extra`` arguments, which become ``values``: a dictionary of numbers, strings, tensors, lists
      and dictionaries, to be read and changed there.

    Files hold no code: what only pickle could build is refused when it is first committed.

    Args:
        directory: where commits live, in memory of this host. Default: ``$GRADSIEVE_STATE_DIR``, or a folder
            of this user and job in /dev/shm.
        every: steps from one commit to the next; `commit` does nothing in between.
        keep: how many commits stay, at least 2: a rank that is lost while it writes leaves the others one
            commit ahead. There must be room for one more.
        durable: a folder that outlives the hosts, and that all of them see, for every ``durable_every``-th
            commit. Rank 0 writes weights, each rank its residual; a thread does it.
        timeout_seconds: how long ranks wait for each other.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    def __init__(
        self,
        model: Stateful,
        optimizer: Stateful,
        *,
        directory: str | Path | None = None,
        every: int = 1,
        keep: int = 2,
        durable: str | Path | None = None,
        durable_every: int = 10,
        timeout_seconds: float = 300.0,
        **extra: Any,
    ) -> None:
        import horovod.torch as hvd

        every = _required_count("every", every, 1)
        keep = _required_count("keep", keep, 2)
        durable_every = _required_count("durable_every", durable_every, 1)
        self.values = {name: value for name, value in extra.items() if not isinstance(value, Stateful)}
        others = {name: value for name, value in extra.items() if isinstance(value, Stateful)}
        self._training = Training(model, optimizer, others, self.values)
        self._every = every
        self._keep = keep
        self._durable_every = durable_every
        self._ranks = Ranks(getattr(optimizer, "process_set", hvd.global_process_set), timeout_seconds)
        self._memory = Folder(_directory(directory), self._ranks.rank, keep)
        self._durable = None if durable is None else DurableCopies(Path(durable), self._ranks.rank, keep)
        self._restored: Restored | None = None
        self._published = 0  # since then
        self._owed: list[float] = []  # by all ranks at the last commit since then
        self._read_back = False

    def restore(self) -> int:
        """Go on from the newest commit that all surviving ranks have; return its step, 0 if there is none.

        A replaced rank gets the others' weights; see `restoring.restore`. Call it once before the first step,
        on all ranks.

        Raises:
            StateError: on every rank: a folder cannot be used, or the commit does not fit this training.
            ExchangeError: a rank did not answer.
        """
        durable = None
        if self._durable is not None:
            durable = self._durable.folder
            self._durable.end(self._ranks.timeout)
        self._training.restart()
        self._restored = restore(self._training, self._memory, durable, self._ranks)
        self._published, self._owed = 0, []
        return self._restored.step

    @property
    def lost(self) -> LostMass:
        """What was lost of residuals at the last `restore`, because ranks are gone; the same on all ranks."""
        return NOTHING_LOST if self._restored is None else self._restored.lost

    def commit(self, step: int) -> None:
        """Commit the state after ``step`` completed steps, if it is a multiple of ``every``.

        With a parameter server ranks step by themselves: rank 0 commits, after steps of its own, the newest
        version of the weights; on the other ranks nothing happens.

        1. Write beside the earlier commits. The first one is read back at once.
        2. Hear whether all ranks could. If one could not, all drop what they wrote and raise.
        3. Rename: from now on this is the newest; the oldest goes.
        4. If it is due, begin the durable copy; its predecessor has ended in step 1.

        Raises:
            ConfigurationError: ``step`` is no number of steps, or `restore` was not called.
            StateError: on every rank: one could not write (the message says why; earlier commits are
                untouched), or the durable copy before this one has failed.
            RankMismatch: the ranks are at different steps.
            ExchangeError: a rank did not answer.
        """
        step = _required_count("step", step, 0)
        if step % self._every:
            return
        if self._restored is None:
            raise ConfigurationError(
                "TrainingState.commit() was called before restore(): call restore() once before the first "
                "step, also when there is nothing to restore"
            )
        alone = self._training.is_served
        if alone and self._ranks.rank:
            return
        commit = Commit(step, _generation(), self._restored.run, self._ranks.rank, self._ranks.size)
        due = self._durable is not None and step // self._every % self._durable_every == 0
        late = self._durable.end(self._ranks.timeout) if due and self._durable is not None else ""
        with self._training.at_one_version():
            problem = self._write(commit)
        said: Answer = {
            "step": step,
            "problem": problem,
            "late": late,
            "owed": self._training.owed(),
        }
        answers = [said] if alone else self._ranks.gather(said)
        steps = sorted({answer["step"] for answer in answers})
        problems = told(answers, "problem")
        if problems or len(steps) > 1:
            self._memory.draft.unlink(missing_ok=True)
            if problems:
                raise StateError(f"step {step} was not committed: {problems}")
            raise RankMismatch(
                f"ranks commit different steps: {steps}. Call commit() on all ranks in the same ones."
            )
        self._owed = [answer["owed"] for answer in answers]
        self._publish(commit, self._restored.neighbours)
        if problems := told(answers, "late"):
            raise StateError(f"{problems} (step {step} is committed in memory)")
        if due and self._durable is not None:
            self._durable.start(self._memory.path_of(commit), commit)

    def discard(self) -> None:
        """Delete this rank's commits in memory: the training has ended. Durable ones stay."""
        self._memory.forget_after(-1)

    def _write(self, commit: Commit) -> str:
        """Write the draft; return what went wrong."""
        draft = self._memory.draft
        try:
            if self._durable is not None and self._durable.busy:
                draft.unlink(missing_ok=True)  # the memory that would be written over is being copied
            shared, own = self._training.capture()
            files.write(draft, commit, shared, {**own, "owed": self._owed})
            if not self._read_back:
                written = files.Opened(draft)
                written.load_shared()
                written.load_own()
            self._read_back = True
        except OSError as error:
            return (
                f"{error.strerror} in {self._memory.path}, which must have room for {self._keep + 1} commits "
                "of every rank of the host. Enlarge it (in Kubernetes the sizeLimit of the volume), or name "
                "another directory="
            )
        except Unusable as reason:
            return f"what was written cannot be read again: {reason}"
        except Exception as error:  # noqa: BLE001 - whatever a user's object raises, every rank must hear of it
            return f"{type(error).__name__}: {error}"
        return ""

    def _publish(self, commit: Commit, neighbours: frozenset[int]) -> None:
        self._memory.publish(commit)
        self._published += 1
        if self._ranks.rank == 0 and has_coordinator():
            from gradsieve_hvd.control.reporter import process_reporter

            process_reporter().committed_step = commit.step
        # Ranks that were here before a restart may have left the only copies; now all ranks have a newer one.
        # Every rank sees to it: its next draft needs the room.
        if self._published == self._keep:
            self._memory.forget_others(neighbours)


def _required_count(name: str, value: object, lowest: int) -> int:
    count: int = plain_count(value)
    if not is_count(count, lowest):
        raise ConfigurationError(f"TrainingState: {name}={value!r} must be an integer of at least {lowest}")
    return count


def _directory(given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    job = os.environ.get(contract.JOB) or "local"
    own = f"/dev/shm/gradsieve-{os.getuid()}-{job}"  # noqa: S108 - checked to be this user's before it is used
    return Path(os.environ.get(contract.STATE_DIRECTORY) or own)


def _generation() -> int:
    return int(os.environ.get(contract.JOB_GENERATION) or 0)

"""Whether a training may go on in another mode: what speaks against it here, and what all ranks say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from gradsieve.bit_hash import bit_hash
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError, RankMismatch
from gradsieve_hvd.optimizer.served.mode import why_no_bound
from gradsieve_hvd.optimizer.synchronizer import Synchronizer

from .served_steps import SERVED_MODES, ServedSteps

CHANGEABLE = ("synchronous", "balanced", "local", *SERVED_MODES)
_SAME = ("mode", "local_steps", "staleness_bound", "step", "weights", "epoch")


class ModeAgreement:
    """Asks all ranks before a change.

    Args:
        synchronizer: of the training.
        refused: by mode, what the user has set that does not go with it.
        server: begins the modes with a parameter server; None if users have not asked for them.

    passes: backward passes of a step, in any mode.
    """

    def __init__(
        self, synchronizer: Synchronizer, refused: Mapping[str, str], server: ServedSteps | None
    ) -> None:
        self._synchronizer, self._refused, self._server = synchronizer, refused, server
        self.passes, self._asked = synchronizer.passes, 0

    def possible(self) -> tuple[str, ...]:
        """Return the modes that speak against nothing on this rank."""
        return tuple(mode for mode in CHANGEABLE if not self.problem(mode))

    def problem(self, mode: str, local_steps: int | None = None, staleness_bound: int | None = None) -> str:
        """Return why a mode is impossible; empty if it is not."""
        if mode not in CHANGEABLE:
            return f"known are {', '.join(map(repr, CHANGEABLE))}"
        if mode in self._refused:
            return f"it does not go with {self._refused[mode]}"
        if mode in SERVED_MODES and (why := self._why_not_served()):
            return why
        if mode == "balanced" and self._synchronizer.batches.dealer is None:
            return "it needs a gradsieve_hvd.DynamicSampler that deals this optimizer's batches"
        if local_steps is not None and (mode != "local" or not is_count(local_steps, 1)):
            return f"local_steps={local_steps!r} must be an integer of at least 1, and for mode 'local'"
        return why_no_bound(mode, staleness_bound)

    def _why_not_served(self) -> str:
        if self._server is None:
            return "it needs parameter_server=True, which has demands of its own on a program"
        return f"it does not go with {self.passes} backward passes a step" if self.passes != 1 else ""

    def _why_not_now(self, mode: str) -> str:
        """Return why ranks cannot leave a parameter server here; empty if they can."""
        amid = self._server is not None and self._server.dealt.batches.open
        if mode in SERVED_MODES or not amid:
            return ""
        return (
            "ranks are amid an epoch, of which their loaders have different numbers of batches: leave a mode "
            "with a parameter server where loaders are not iterated, as between two epochs"
        )

    def ask(
        self, mode: str, local_steps: int | None, staleness_bound: int | None, step: int
    ) -> list[dict[str, Any]]:
        """Tell the other ranks what this one wants and where it is; return what all have told, by rank.

        "epoch", "handed_out": of the sampler's batches; without one, the batches taken.

        Raises:
            ConfigurationError: on all ranks: the mode is impossible on one.
            RankMismatch: on all ranks: they want different things, or are not where the others are.
        """
        synchronizer, self._asked = self._synchronizer, self._asked + 1
        hashes = [bit_hash(each.detach()) for _, each in sorted(synchronizer.named.items())]
        dealer = synchronizer.batches.dealer
        said = {
            "mode": mode,
            "local_steps": local_steps,
            "staleness_bound": staleness_bound,
            "step": step,
            "weights": bit_hash(torch.tensor(hashes, dtype=torch.int64, device="cpu")),
            "problem": self.problem(mode, local_steps, staleness_bound) or self._why_not_now(mode),
            "epoch": 0 if dealer is None else dealer.epoch,
            "handed_out": synchronizer.batches.taken if dealer is None else dealer.handed_out,
        }
        message = synchronizer.connection.messages.tell(
            json.dumps(said, default=repr).encode(), f"mode.{self._asked}"
        )
        told = [json.loads(each) for each in message.wait()]
        for rank, each in enumerate(told):
            if each["problem"]:
                raise ConfigurationError(f"mode {each['mode']!r} on rank {rank}: {each['problem']}")
        for field in _SAME:
            values = [each[field] for each in told]
            if any(value != values[0] for value in values):
                shown = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
                raise RankMismatch(
                    f"the mode cannot be changed to {mode!r}: ranks differ in {field} ({shown}). All ranks "
                    "change between the same two steps, to the same mode, with weights that are the same"
                )
        return told

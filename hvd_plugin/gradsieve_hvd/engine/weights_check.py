"""Ranks whose weights have drifted apart are found out.

Synchronous training averages gradients and trusts that everything else is equal. It is not when one rank
computes differently (another processor, flush-to-zero), skips a step, changes a weight by itself, or was
never given the others' weights at the start; every rank then trains a model of its own, and the loss hardly
shows it.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradsieve.bit_hash import bit_hash
from gradsieve.errors import RankMismatch
from gradsieve_hvd.transport.messages import Messages, Replies

NamedWeights = Callable[[], Sequence[tuple[str, Tensor]]]
FIRST = 10  # rounds before the first check: most reasons are there from the beginning
_SHOWN = 8
_SUMMARY = struct.Struct("<qq")  # optimizer steps taken, hash over the hashes of all weights


class WeightsCheck:
    """Compares one optimizer's weights across ranks: after ten rounds, and every ``check_weights_every``.

    A *round* is an exchange of all gradients, whether its step was then taken or skipped: its end comes on
    all ranks, even on one that skips a step which the others take.

    1. At the end of a round that is due, hash each weight.
    2. When the next round begins, start to gather 16 bytes per rank: the number of steps taken and a hash
       over the hashes. Not before: a training may end with the round that was due, and one rank's Horovod be
       gone before the other has begun.
    3. At the end of that round it has long arrived: compare.
    4. Only if it differs somewhere, tell each other the hashes by name, and raise.

    Hashes are of bits.

    Args:
        named_weights: returns what is compared, sorted by name.
        messages: to the other ranks.
        every: rounds from one comparison to the next; None or 0 for none.
    """

    def __init__(self, named_weights: NamedWeights, messages: Messages, every: int | None) -> None:
        self._named_weights, self._messages, self._every = named_weights, messages, every
        self._rounds = 0
        self._pending: _Pending | None = None

    def restart(self) -> None:
        """Begin as in a new process: the ranks may be others than before, and what was in flight is lost."""
        self._rounds = 0
        self._pending = None

    def begin_round(self) -> None:
        """A gradient of a new round is about to be sent; further calls in the same round do nothing."""
        if self._pending is not None:
            self._pending.begin()

    def end_round(self, number: int | None, step: int, *, equal: bool = True) -> None:
        """Go on by a round. ``number``: the optimizer's; ``step``: optimizer steps taken on this rank;
        ``equal``: whether weights ought to be, now.

        Raises:
            RankMismatch: on every rank, if the weights differed at the end of the round before.
            ExchangeError: a rank did not answer.
        """
        if not self._every:
            return
        self._rounds += 1
        due = self._rounds % self._every == 0 or self._rounds == min(self._every, FIRST)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.compare()
        if due and equal:
            self._pending = _Pending(self._named_weights(), self._messages, f"weights.{number}", step)


class _Pending:
    """A comparison under way."""

    def __init__(
        self, weights: Sequence[tuple[str, Tensor]], messages: Messages, name: str, step: int
    ) -> None:
        self._messages, self._name = messages, name
        self._hashes = {key: bit_hash(weight) for key, weight in weights}
        total = bit_hash(torch.tensor(list(self._hashes.values()), dtype=torch.int64, device="cpu"))
        self._summary = _SUMMARY.pack(step, total)
        self._replies: Replies | None = None

    def begin(self) -> Replies:
        if self._replies is None:
            self._replies = self._messages.tell(self._summary, self._name)
        return self._replies

    def compare(self) -> None:
        messages = self.begin().wait()
        if len(set(messages)) == 1:
            return
        hashes = json.dumps(self._hashes).encode()
        details = self._messages.tell(hashes, f"{self._name}.names").wait()
        steps = [_SUMMARY.unpack(message)[0] for message in messages]
        raise RankMismatch(_message(steps, [json.loads(each) for each in details]))


def describe_differences(everyone: Sequence[Mapping[str, int]]) -> str:
    """Say which weights differ on which ranks, given every rank's hashes by name.

    The ranks named are those that differ from most; if there is no majority, those that differ from rank 0.
    """
    found = []
    for name in sorted({name for hashes in everyone for name in hashes}):
        values = [hashes.get(name) for hashes in everyone]
        usual, count = Counter(values).most_common(1)[0]
        if 2 * count <= len(values):
            usual = values[0]
        others = [str(rank) for rank, value in enumerate(values) if value != usual]
        if others:
            found.append(f"'{name}' on {'rank' if len(others) == 1 else 'ranks'} {', '.join(others)}")
    shown = found[:_SHOWN] + ([f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])
    return ", ".join(shown)


def _message(steps: Sequence[int], everyone: Sequence[Mapping[str, int]]) -> str:
    differences = describe_differences(everyone)
    parts = [f"weights differ from those of the other ranks: {differences}."] if differences else []
    if len(set(steps)) > 1:
        parts.append(f"The ranks have taken different numbers of steps: {', '.join(map(str, steps))}.")
    return (
        f"after step {max(steps)}: {' '.join(parts)} Since when is not known; from there on every rank "
        "trains a model of its own. Usual reasons: the weights were not equal at the start; a rank skipped a "
        "step or changed a weight by itself; a rank uses several optimizers in another order; ranks compute "
        "in different ways (flush-to-zero, unlike processors). Remove the reason, then go on from a commit "
        "or by hvd.broadcast_parameters(model.state_dict(), root_rank=0). check_weights_every=None turns "
        "this off."
    )

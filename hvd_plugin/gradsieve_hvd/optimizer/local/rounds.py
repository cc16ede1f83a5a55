"""Rounds of local steps, and the exchange that ends each."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import Parameter

from gradsieve import SparseGradient
from gradsieve.bit_hash import bit_hash
from gradsieve.codec import Label
from gradsieve.errors import ConfigurationError, NonFiniteGradient, PayloadError, RankMismatch
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.settings_check import compare_settings, settings_of
from gradsieve_hvd.engine.weights_check import describe_differences
from gradsieve_hvd.exchange import AllgatherExchange, Exchanged
from gradsieve_hvd.optimizer.connection import Connection
from gradsieve_hvd.optimizer.sampling import BatchCounter
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.framed import FramedTransport

from .finite import not_finite
from .pseudo_gradient import PseudoGradient
from .received import ReceivedTransport
from .report import Ending, Report, judge
from .rules import LocalRules
from .stats import LocalStats, stats_of


class LocalRounds:
    """Local updates with sparse pseudo-gradients (SparseLoCo, arXiv 2508.15706).

    A *round*, from weights that are the same on all ranks:

    1. H steps of the user's optimizer, by every rank for itself; its state stays there **(r)**.
    2. Δ = start - now; e ← β e + Δ.
    3. Send the selected entries of e, rounded; e keeps the rest, and what rounding took away.
    4. Tell each other whether all could send, read and compute; if not, nothing is applied anywhere.
    5. Weights = start - α · mean of what was sent, on all ranks the same bits.

    Args:
        named: all parameters by name.
        settings: what is sent of the differences, and how long ranks wait for each other.
        rules: H, α, β.
        connection: with the other ranks.
        passes: backward passes, each of a batch, before a step.
        batches: that steps have used.

    taken: local steps in the present round. rounds: that were applied. layers: by name. batches: as given.
    at_end: called on all ranks after each round that was applied, with their reports; None for nothing.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Parameter]],
        settings: Settings,
        rules: LocalRules,
        connection: Connection,
        passes: int,
        batches: BatchCounter,
    ) -> None:
        self.settings, self.rules, self.passes = settings, rules, passes
        self._connection = connection
        self.messages = self._connection.messages
        self.layers = {name: self.new_layer(name, parameter) for name, parameter in named}
        self.taken = self.rounds = 0
        self._open = self._compared = False
        self._number: int | None = None
        self._nonfinite: set[str] = set()
        self._hashes: dict[str, int] = {}
        self._began = 0.0
        self.stats = LocalStats()
        self.batches = batches
        self.at_end: Callable[[Sequence[Report]], None] | None = None

    def new_layer(self, name: str, parameter: Parameter) -> PseudoGradient:
        """Return what is kept of a parameter, as of before its first round."""
        return PseudoGradient(name, parameter, self.settings.config, self.rules.decay)

    def add(self, name: str, parameter: Parameter) -> None:
        """Exchange one more parameter; all ranks add the same ones, between two rounds."""
        self._open = self._compared = False
        self.layers[name] = self.new_layer(name, parameter)

    def require_between_rounds(self) -> None:
        """Check that parameters may be added.

        Raises:
            ConfigurationError: within a round.
        """
        if self.taken:
            raise ConfigurationError(
                f"parameters were added after {self.taken} of {self.rules.steps} local steps: ranks have "
                "different weights now. Add them between two rounds, or call optimizer.synchronize() before."
            )

    # -- steps --

    def begin_step(self, *, checks: bool = True) -> bool:
        """A local step is about to be made. Return whether it may be: not with a gradient that is not finite,
        which is told to all ranks at the end of the round.

        checks: whether to look at the gradients.

        Raises:
            RankMismatch: before the first step: the ranks' settings differ.
        """
        self._begin_round()
        found = set[str]()
        if checks:
            found = not_finite((name, layer.parameter.grad) for name, layer in self.layers.items())
        self._nonfinite |= found
        return not found

    def end_step(self) -> None:
        """A local step was made; after the last one of a round, exchange.

        Raises:
            NonFiniteGradient, RankMismatch, ExchangeError: on all ranks; see `end_round`.
        """
        self.taken += 1
        self.batches.took(self.passes)
        if self.taken == self.rules.steps:
            self.end_round("all steps")

    def _begin_round(self) -> None:
        if self._open:
            return
        self._connection.connect()
        if not self._compared:
            self._compare()
        for layer in self.layers.values():
            layer.begin()
        if self.settings.check_weights_every:
            self._hashes = {name: bit_hash(layer.start) for name, layer in self.layers.items()}
        self._open, self._began = True, time.monotonic()

    def _compare(self) -> None:
        named = [(name, layer.parameter) for name, layer in self.layers.items()]
        mine = settings_of(self.settings, named, [*self.layers], mode="local", **self.rules.describe())
        timeout = self.settings.timeout_seconds
        self._number = compare_settings(mine, self._number, self.messages, timeout)
        self._compared = True

    # -- the end of a round --

    def synchronize(self) -> None:
        """End the round now, on all ranks after the same steps: weights are the same on all of them then.

        Raises:
            NonFiniteGradient, RankMismatch, ExchangeError: on all ranks; see `end_round`.
        """
        self.end_round("synchronize()")

    def finish(self) -> None:
        """End the round, and take part with nothing in the others' until all ranks have finished.

        Raises:
            NonFiniteGradient, RankMismatch, ExchangeError: on all ranks; see `end_round`.
        """
        while any(report.ending != "finish()" for report in self.end_round("finish()")):
            pass

    def end_round(self, ending: Ending) -> list[Report]:
        """Exchange pseudo-gradients and make the common step; return all ranks' reports.

        A rank that has taken no step takes part with nothing; means are over all ranks all the same **(r)**.

        Raises:
            NonFiniteGradient: on all ranks, if a gradient or weight was not finite on one.
            RankMismatch: on all ranks, if their rounds end, or began, differently.
            ExchangeError: a rank did not answer, or could not read what it was sent. Whatever is raised:
                weights are those that the round began with, and residuals as before it.
        """
        self._begin_round()
        computed = time.monotonic()
        try:
            reports = self._exchange(ending)
        except BaseException:
            self._undo()
            self._close()
            raise
        self.batches.applied()
        for layer in self.layers.values():
            layer.compressor.commit()
        self.rounds += 1
        spent = time.monotonic()
        self.stats = self.stats.after(
            steps=self.taken, computing=computed - self._began, ending=spent - computed
        )
        if self.at_end is not None:
            self.at_end(reports)
        self._close()
        return reports

    def _undo(self) -> None:
        for layer in self.layers.values():
            layer.undo()
        self.batches.gave_up()

    def _close(self) -> None:
        self.taken, self._open = 0, False
        self._nonfinite.clear()

    def _exchange(self, ending: Ending) -> list[Report]:
        sent: list[tuple[int, SparseGradient]] = []
        at = 0
        for name, layer in self.layers.items():
            selected = layer.select() if self.taken else layer.abstain()
            if isinstance(selected, SparseGradient):
                sent.append((at, selected))
            else:
                self._nonfinite.add(name)
            at += layer.start.numel()
        result = self._exchanged(SparseGradient.joined(sent, at))
        hashes = torch.tensor(list(self._hashes.values()), dtype=torch.int64, device="cpu")
        report = Report(
            ending,
            self.taken,
            bit_hash(hashes) if self._hashes else None,
            tuple(sorted(self._nonfinite)),
            "" if isinstance(result, Exchanged) else str(result),
        )
        told = self.messages.tell(report.packed(), f"local.{self._number}.{self.rounds}").wait()
        reports = [Report.unpacked(message, rank) for rank, message in enumerate(told)]
        self._require_equal_weights(reports)
        judge(reports, self.rounds + 1)
        assert isinstance(result, Exchanged), "judge() would have raised"
        assert not result.refused, "who refuses says so in its report"
        self._apply(result)
        return reports

    def _exchanged(self, sent: SparseGradient) -> Exchanged | PayloadError | RankMismatch:
        """Return what came of the exchange, or why it cannot be read, which the other ranks are to hear."""
        exchange = AllgatherExchange(self.settings.config.value_dtype)
        label = Label(0, tuple(layer.start.numel() for layer in self.layers.values()))
        refuse = bool(self._nonfinite)

        def begin(transport: Transport) -> Callable[[], Exchanged | PayloadError | RankMismatch]:
            framed = FramedTransport(ReceivedTransport(transport), label)
            finish = exchange.begin(sent, framed, refuse=refuse)

            def read() -> Exchanged | PayloadError | RankMismatch:
                try:
                    return finish()
                except (PayloadError, RankMismatch) as error:
                    return error

            return read

        pending = self._connection.submit(begin, f"round {self.rounds + 1} of local updates")
        result = pending.wait()
        self.stats = stats_of(self.stats, sent, pending.transport, self.taken)
        return result

    def _require_equal_weights(self, reports: Sequence[Report]) -> None:
        if len({report.weights for report in reports}) == 1:
            return
        told = self.messages.tell(json.dumps(self._hashes).encode(), "local.weights").wait()
        raise RankMismatch(
            f"round {self.rounds + 1} of local steps began with weights that differ between ranks: "
            f"{describe_differences([json.loads(each) for each in told])}. Make them equal before the first "
            "step, by hvd.broadcast_parameters(model.state_dict(), root_rank=0), and change none by hand."
        )

    def _apply(self, result: Exchanged) -> None:
        layers = list(self.layers.values())
        sizes = [layer.start.numel() for layer in layers]
        parts = list(zip(*(summand.split(sizes) for summand in result.summands), strict=True))
        for name, layer, summands in zip(self.layers, layers, parts, strict=True):
            if layer.would_overflow(summands):
                raise NonFiniteGradient(
                    f"the ranks' differences of '{name}' add up to more than {layer.start.dtype} holds. "
                    "Nothing was applied; lower the learning rate."
                )
        for layer, summands in zip(layers, parts, strict=True):
            layer.apply(summands, self.rules.learning_rate / self.messages.size)
        for layer, rejected in zip(layers, result.rejected.split(sizes), strict=True):
            if rejected.count:
                layer.compressor.reclaim(rejected.to(layer.start.device))

    # -- what goes on --

    def waiting(self) -> float:
        """Return the L2 norm of all that waits in this rank's residuals."""
        return math.hypot(*(layer.compressor.waiting() for layer in self.layers.values()))

    def explain(self) -> Explanation:
        """Return what is exchanged and when."""
        rules = self.rules
        why = (
            f"mode='local', {self.taken} of {rules.steps} local steps into round {self.rounds + 1}; "
            f"residual_decay {rules.decay:g}, outer_learning_rate {rules.learning_rate:g}"
        )
        return Explanation("allgather", rounds=self.rounds, why=why)

    def replace(self, layers: dict[str, PseudoGradient], rounds: int) -> None:
        """Go on with what was loaded, after so many rounds; a round under way is forgotten."""
        self.layers, self.rounds = layers, rounds
        self._close()

    def restart(self) -> None:
        """Begin as in a new process, on all ranks together: they may be others than before, and their weights
        must be made the same again. Residuals go on; the local steps of a round under way are undone.
        """
        if self._open:
            self._undo()
        self._close()
        self._compared = False
        self._connection.disconnect()
        self.batches.restart(self.messages.rank, self.messages.size)

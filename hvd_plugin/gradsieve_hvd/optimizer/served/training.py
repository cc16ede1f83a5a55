"""Training by a parameter server that lives in the ranks themselves: one rank's part of it.

::

    step: gradients ─► Push to the decision-maker, Parts to the shards ─► wait ─► p = new weights, or go on
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.nn import Parameter

from gradsieve.errors import ConfigurationError, GradsieveError, NonFiniteGradient
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.pace import Pace
from gradsieve_hvd.optimizer.arguments import require_known_parameters
from gradsieve_hvd.optimizer.sampling import ServedBatches
from gradsieve_hvd.server.decision_maker import DecisionMaker
from gradsieve_hvd.server.ledger import Ledger
from gradsieve_hvd.server.ranges import Pairs
from gradsieve_hvd.server.server_thread import ServerThread
from gradsieve_hvd.server.shard_optimizer import hyperparameters_of
from gradsieve_hvd.server.worker import Worker
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.mail import require_mailing

from .counters import ServedCounters
from .gradients import ServedGradients
from .newest_version import NewestVersion, state_of
from .serving import Serving
from .weights import ServedWeights

_SHORTEST_SECONDS = 1e-6  # speeds are samples over seconds


class ServedTraining:
    """One rank's worker, and its shard, from the first step on.

    Args:
        optimizer: the user's; its class makes the updates, on the shards.
        gradients: of its parameters.
        named: these, sorted by name.
        transport: to the other ranks; it carries letters.
        serving: what all ranks serve, and how.
        meet: is called before the first step, on all ranks; raises if they cannot train together.
        first_step: how many steps were taken before, in another mode.

    gradients: as given. batches: that a sampler deals. counters: what has happened so far.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        gradients: ServedGradients,
        named: Sequence[tuple[str, Parameter]],
        transport: Transport,
        serving: Serving,
        *,
        meet: Callable[[], None],
        first_step: int = 0,
    ) -> None:
        require_mailing(transport)
        self._optimizer, self._transport, self._serving = optimizer, transport, serving
        self._named, self.gradients, self._first_step, self._meet = named, gradients, first_step, meet
        self._weights = ServedWeights(self._named)
        self._server: ServerThread | None = None
        self._worker: Worker | None = None
        self._finished = False
        self._newest = NewestVersion(self._weights, named, self._put)
        self._groups = 0  # of the shards' optimizers
        self._began = time.monotonic()
        self.counters, dealt = ServedCounters(), serving.dealt
        self.batches = ServedBatches() if dealt is None else dealt.batches

    def begin(self, groups: torch.optim.Optimizer) -> Worker:
        """Return this rank's worker. The first time, which is before the first step, compare settings and
        weights with the other ranks; see `step`.

        Raises:
            ConfigurationError, GradsieveError: see `step`.
        """
        if self._finished:
            raise ConfigurationError("optimizer.finish() was called, and all ranks have stopped")
        return self._worker or self._start(groups)

    @property
    def ranks(self) -> int:
        """How many train."""
        return self._transport.size

    @property
    def epochs(self) -> list[tuple[int, Pairs]]:
        """Within `consistent`, the epochs that are not over and what the weights have used of them.

        Raises:
            ConfigurationError: elsewhere, or after `finish`.
        """
        before = self._serving.dealt
        if self._worker is None and before is not None and before.epochs is not None:
            return before.epochs
        if self._worker is None or not self._newest.is_shown:
            raise ConfigurationError(
                "which samples the weights have used is known within `with optimizer.consistent():`, after "
                "the first step and before finish()"
            )
        return self._worker.epochs

    @property
    def samples_seen(self) -> int:
        """Samples of all ranks behind the newest weights that this rank was told of."""
        return self.batches.seen_before + (0 if self._worker is None else self._worker.samples_seen)

    @property
    def ledger(self) -> Ledger:
        """Where the gradients went that this rank's shard was given."""
        return Ledger() if self._server is None else self._server.shard.ledger

    @property
    def missed(self) -> dict[int, int]:
        """On rank 0, the number of gradients applied, by the releases that each had missed; else nothing."""
        maker = self._decision_maker
        return {} if maker is None else dict(maker.missed)

    @property
    def _decision_maker(self) -> DecisionMaker | None:
        return None if self._server is None else self._server.decision_maker

    @property
    def asked_to_leave(self) -> bool:
        """Whether all ranks are to call `finish` now."""
        return self._worker is not None and self._worker.leave

    def ask_all_to_leave(self) -> None:
        """On rank 0, have all ranks be told so, each with its next answer."""
        if (maker := self._decision_maker) is not None:
            maker.ends = True

    def pace(self) -> Pace | None:
        """Return what ranks have done so far; None on others than rank 0, and before the first step."""
        maker, counters = self._decision_maker, self.counters
        if maker is None:
            return None
        return Pace(
            time.monotonic(),
            tuple(maker.pushes),
            tuple(maker.computing),
            counters.steps,
            counters.pushed_bytes + counters.reply_bytes,
            self.gradients.density,
            4 * sum(parameter.numel() for _, parameter in self._named),
        )

    def explain(self) -> Explanation:
        """Return how gradients travel."""
        mode = self._serving.mode
        return Explanation("server", why=f"mode={mode!r}, a parameter server makes the updates")

    @property
    def version(self) -> int:
        """Of this rank's weights: how many updates they have had."""
        return 0 if self._worker is None else self._worker.version

    def begin_batch(self) -> None:
        """Gradients were zeroed: the first time, training begins then, rather than at construction."""
        if self._worker is None:
            self._began = time.monotonic()

    def step(self, groups: torch.optim.Optimizer, samples: int | None) -> None:
        """Push the gradients, and wait until the mode lets this rank go on, perhaps with new weights.

        groups: the optimizer whose hyperparameters and, at the first step, state count. samples: in the
        batch; None for what was dealt, or 1.

        Raises:
            ConfigurationError: training has finished, a gradient is sparse, there was no such batch, it is
                called within `consistent`, or there are parameters that nobody serves, or fewer groups.
            GradsieveError: training has failed, here or on another rank; the weights are of the last version
                that came.
        """
        self._newest.require_not_shown("step()")
        require_known_parameters(groups, {parameter for _, parameter in self._named})
        worker = self.begin(groups)
        worker.raise_if_failed()
        if len(groups.param_groups) != self._groups:
            raise ConfigurationError(
                f"optimizer.param_groups has {len(groups.param_groups)} groups, and had {self._groups} when "
                "training began, which a parameter server keeps. Freeze what is not to be trained, or make "
                "the optimizer again"
            )
        dealt = self.batches.samples
        if samples is not None and samples != (dealt or samples):
            raise ConfigurationError(
                f"step(samples={samples}) after a batch that the DynamicSampler has dealt {dealt}: take "
                "one step for each batch that its loader yields"
            )
        computed = time.monotonic()
        payloads = self.gradients.payloads(self._first_step + worker.pushes, self.batches.scale)
        if isinstance(payloads, list):
            self._refuse(worker, payloads)
        assert isinstance(payloads, dict)
        # Apart from each other: speeds are without what takes as long for a small batch (see `Balance`).
        seconds, encoding = max(computed - self._began, _SHORTEST_SECONDS), time.monotonic() - computed
        hyperparameters = hyperparameters_of(groups) if self._transport.rank == 0 else []
        pushed = time.monotonic()
        try:
            fresh = worker.push(
                payloads,
                samples or dealt or 1,
                seconds,
                hyperparameters,
                encoding_seconds=encoding,
                dealt=dealt is not None,
                raw=self.gradients.whole,
            )
        except GradsieveError:
            self.gradients.rollback()
            raise
        if fresh is not None:
            self._put(worker, fresh.tensors)
        self.gradients.commit()
        self.batches.used()
        self._began = time.monotonic()
        self.counters.count(payloads, fresh, seconds + encoding, self._began - pushed)
        self.counters.held_seconds += worker.held_seconds
        self.counters.staleness, self.counters.share = worker.staleness, worker.share

    def finish(self, groups: torch.optim.Optimizer) -> None:
        """Stop pushing, serve until all ranks have stopped, and take over the last version; a second time,
        nothing.

        Raises:
            ConfigurationError: it is called within `consistent`.
            GradsieveError: see `step`.
        """
        self._newest.require_not_shown("finish()")
        if not self._finished:
            worker = self._worker or self._start(groups)
            last = worker.finish()
            self.batches.keep_answer(worker)
            self._put(worker, last.tensors)
            if self._serving.gives_back:
                groups.state = state_of(last, self._named)
            self._finished = True

    @property
    def begun(self) -> bool:
        """Whether the shards have the weights: from the first step on."""
        return self._worker is not None

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state is here, rather than with the shards."""
        return self._worker is None or self._newest.has_state

    def require_not_begun(self, what: str) -> None:
        """Refuse what looks at the optimizer's state after the first step, when the shards have it.

        Raises:
            ConfigurationError: the first step was taken.
        """
        if self._worker is not None:
            raise ConfigurationError(
                f"{what} after the first step with mode={self._serving.mode!r}: the optimizer's state is "
                "spread over the ranks' shards. Save it within optimizer.consistent(state=True), and load it "
                "before the first step"
            )

    @contextmanager
    def consistent(self, groups: torch.optim.Optimizer, *, state: bool) -> Iterator[int]:
        """Within, this rank's model has the newest version's weights, whose number is yielded, and, if that
        is asked for, ``groups`` the optimizer's state; afterwards, what both had before. See `NewestVersion`.

        Raises:
            ConfigurationError: the state is asked for after `finish`.
            GradsieveError: see `step`.
        """
        if state and self._finished:
            raise ConfigurationError("consistent(state=True): save the optimizer's state before finish()")
        if self._worker is None or self._finished:
            yield self.version
            return
        with self._newest.shown(self._worker, groups, state=state) as version:
            yield version

    def _start(self, groups: torch.optim.Optimizer) -> Worker:
        """Compare settings and weights with the other ranks, then serve.

        Raises:
            RankMismatch: on every rank: they differ.
        """
        self._meet()
        self._groups = len(groups.param_groups)
        self._server, self._worker = self._serving.begin(
            self._optimizer, groups, self._named, self._transport, self.batches, self._began
        )
        return self._worker

    def _refuse(self, worker: Worker, names: Sequence[str]) -> None:
        shown = ", ".join(f"'{name}'" for name in names[:8])
        error = NonFiniteGradient(
            f"NaN or infinity in the gradient of {shown} on rank {self._transport.rank}. Training has ended "
            f"on all ranks, and no weight was changed since the last version. Check loss and learning rate, "
            "and start again from a checkpoint."
        )
        worker.fail(error)
        worker.raise_if_failed()

    def _put(self, worker: Worker, tensors: Mapping[int, tuple[torch.Tensor, bool]]) -> None:
        try:
            self._weights.put(tensors)
        except GradsieveError as error:
            worker.fail(error)
            raise

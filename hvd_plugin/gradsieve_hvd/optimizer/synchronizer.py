"""One optimizer's gradients on their way through buckets: from backward's hooks to ``synchronize()``.

::

    hook: ready ─► TensorReduction.select ─► bucket ─► exchange thread            [backward goes on]
    synchronize: the rest ─► wait ─► TensorReduction.end_sum ─► p.grad = mean
    step: RoundOutcome.updating ─► the update ─► Reducer.commit
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Parameter

from gradsieve import CompressionConfig, Policy, Steering
from gradsieve_hvd.engine import checkpoint
from gradsieve_hvd.engine.held_clipping import HeldClipping
from gradsieve_hvd.engine.parameters import ParameterState
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings import Settings

from .agreement import Agreement
from .backward_hooks import BackwardHooks
from .bucket_reduction import BucketReduction
from .common_hyperparameters import CommonHyperparameters
from .connection import Connection
from .horovod_pace import HorovodPace
from .insight import Insight
from .launches import Launches
from .momentum import TakenOverMomentum
from .path_changes import PathChanges
from .paths import Path
from .plan import BucketPlan, expected_order
from .round_clock import RoundClock
from .round_outcome import RoundOutcome
from .sampling import Balance, BatchCounter
from .usual_settings import ChosenFor


class Synchronizer:
    """Sums an optimizer's gradients over ranks.

    A *round* begins with the first gradient that is ready, or with ``synchronize()``, and ends with it.
    Buckets leave in the plan's order on every rank, whichever fills first: what is ready early waits for its
    turn, and what is not ready when backward ends takes part with what there is, or with zeros.

    Args:
        named: all parameters by name, in the order of their registration.
        settings: the user's.
        connection: with the other ranks.
        path: how gradients travel.
        averages: whether gradients are averaged, rather than summed.
        passes: backward passes before a gradient is ready.
        sparse_as_dense: whether sparse gradients become dense ones; else they are refused.
        compared: what else must be equal on all ranks, JSON-able; "exchange" among it.
        momentum: the optimizer's, if it is applied here.
        group_of: tensors of one group share a bucket.
        predivide: by how much gradients that travel whole are divided before they are added up, rather than
            after.
        steering: has the densities of the job's coordinator followed, if this optimizer serves all ranks of a
            job that has one; else None.

    named: all parameters. connection: as given. joining: who has joined. reducer: the step's state.
    agreement: on settings, and the plan. insight: what is known of rounds. in_round: whether gradients are
    being exchanged. batches: that rounds have used. balance: weighs gradients by samples; None if they are
    not. chosen_for: looks whether selecting still suits the optimizer; None where a user has chosen it.
    hyperparameters: keeps them alike on all ranks; None where they are anyway. outcome: of the last round's
    sums.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Parameter]],
        settings: Settings,
        connection: Connection,
        path: Path,
        *,
        averages: bool,
        passes: int,
        sparse_as_dense: bool,
        compared: dict[str, Any],
        momentum: TakenOverMomentum | None = None,
        group_of: Mapping[str, int],
        predivide: float,
        steering: Steering | None = None,
    ) -> None:
        self._path, self._momentum = path, momentum
        self._hooks = BackwardHooks(named, self, passes)
        self.named = self._hooks.named
        self.connection = connection
        self.joining = connection.joining
        self.reducer = Reducer(
            settings,
            self._hooks.by_name,
            self.connection.messages,
            averages=averages,
            steering=steering,
            new_state=self._new_state,
            holds_when_clipping=True,
        )
        self.agreement = Agreement(self.reducer, compared, compresses=path.compresses, steering=steering)
        self._plan = BucketPlan(settings.config, path, group_of)
        self._gradients = BucketReduction(
            self.reducer,
            self.named,
            self._plan,
            momentum=momentum,
            sparse_as_dense=sparse_as_dense,
            predivide=predivide,
        )
        self._clock = RoundClock()
        self._launches = Launches(self._plan, self._gradients, self.connection, self._clock)
        changes = None
        if path.chooses:
            changes = PathChanges(self._plan, self.reducer, self.connection.submit, self._clock)
        self.insight = Insight(self.reducer, compared["exchange"], path.why, self._clock, changes)
        self._pace = HorovodPace(connection)
        self.in_round = False
        self.batches = BatchCounter(self.reducer.messages.rank, self.reducer.messages.size)
        self.balance: Balance | None = None
        self.chosen_for: ChosenFor | None = None
        self.hyperparameters: CommonHyperparameters | None = None
        self.agreement.share = self._share
        self.outcome = RoundOutcome(
            self.reducer, self._gradients, momentum, self.joining, self.batches, self.agreement
        )

    def _new_state(
        self, name: str, parameter: Parameter, config: CompressionConfig, policy: Policy
    ) -> ParameterState:
        state = self._path.new_state(name, parameter, config, policy)
        if self._momentum is not None:
            state.velocity = self._momentum.velocity(parameter, compressed=state.compressor is not None)
        return state

    def _share(self) -> tuple[float, float]:
        share = self.batches.shares(self.batches.taken)[self.batches.rank]
        return share, 0.0 if self.balance is None else self.balance.computing_seconds

    def add(self, name: str, parameter: Parameter) -> None:
        """Reduce one more parameter from the next round on; all ranks add the same ones.

        Raises:
            ConfigurationError: its type cannot be exchanged.
        """
        self._hooks.add(name, parameter)

    # -- ranks that change --

    def restart(self) -> None:
        """Begin as in a new process, on all ranks together: they may be others than before.

        In elastic training, the residuals of this rank go on; see `checkpoint`. So do velocities of
        compressed tensors, which are a rank's own. Those of tensors that travel whole begin at zero: they
        must be equal on all ranks, and new ranks have none. The transport is made again in the next round,
        which is the first one of new ranks.
        """
        self._end_round()
        self.reducer.restart()
        self._plan.restart()
        self.insight.restart()
        kept = checkpoint.state_of(self.reducer) if self.connection.elastic else None
        self.connection.disconnect()
        self.batches.restart(self.reducer.messages.rank, self.reducer.messages.size)
        if self.balance is not None:
            self.balance.restart()
        if kept is not None:
            kept["dense"] = {name: each for name, each in kept["dense"].items() if name in kept["layers"]}
            checkpoint.prepare(self.reducer, kept, residuals=True)()

    # -- backward --

    def set_passes(self, passes: int) -> None:
        """Have gradients ready after so many backward passes, from the next step on."""
        self._hooks.passes = passes

    def gradient_ready(self, name: str) -> None:
        """The last of a step's backward passes has accumulated a gradient.

        It is put into its bucket when all of the bucket are there, one after another: between two operations
        of backward, each of them would find the processor's caches cold.

        Raises:
            ConfigurationError: it, or another of its bucket, is sparse.
            RankMismatch: in the first round: the ranks' settings differ.
        """
        self._begin_round()
        complete = self._plan.ready(name)
        if complete and not isinstance(self.reducer.clipping, HeldClipping):
            for each in complete:
                self._put(each)
            self._launches.launch_full()

    def _put(self, name: str) -> None:
        began = time.monotonic()
        self._gradients.put(name)
        self._clock.selected(time.monotonic() - began)

    def _begin_round(self) -> None:
        """1. If the sums of the last round were never applied, that step was skipped: roll it back.
        2. Take in parameters that have thawed; the same ones on all ranks.
        3. In the first round, also after a restart, connect to the ranks and compare settings.
        4. Give tensors that are new their buckets.
        """
        if self.in_round:
            return
        self._gradients.begin_round()
        if self.reducer.unapplied:
            self.outcome.skip()
        self._hooks.register()
        self.meet()
        known = self._plan.names
        new = [(name, p) for name, p in self._hooks.reduced() if name not in known]
        self._plan.extend(expected_order(new))
        if self._momentum is not None:
            self._momentum.begin_round(1 if self.reducer.averages else self.reducer.messages.size)
        if self.balance is not None:
            self.reducer.weight = self.balance.weight()
        self.reducer.begin_round()
        self.insight.begin_round()
        self.in_round = True

    def meet(self) -> None:
        """Connect to the ranks and compare settings, unless that was done; all ranks call it together.

        Raises:
            RankMismatch: the ranks' settings differ.
        """
        self.connection.connect()
        if not self.reducer.compared:
            self.agreement.compare(self._hooks.passes, [name for name, _ in self._hooks.reduced()])
            self.insight.agree()

    @property
    def passes(self) -> int:
        """Backward passes before a gradient is ready."""
        return self._hooks.passes

    def give_back_momentum(self) -> None:
        """Let the optimizer have the momentum that is applied here, before it makes steps by itself."""
        if self._momentum is not None:
            for state in self.reducer.states.values():
                if state.velocity is not None:
                    self._momentum.give_back(state.parameter, state.velocity)

    def weigh(self, announce_every: int) -> Balance:
        """Weigh gradients by samples from now on, and let shares follow speeds; see `Balance`."""
        self.balance = Balance(self.batches, announce_every, lambda: self._clock.exchanging_seconds)
        return self.balance

    def pause(self) -> None:
        """Leave gradients alone until `resume`: between two steps, in which they stay on their rank."""
        self._hooks.paused = True

    def resume(self) -> None:
        """Go on with the gradients of the next step; the time since `pause` is no part of its round."""
        if self._hooks.paused:
            self._hooks.paused = False
            self._clock.started()

    def end_hooks_with(self, optimizer: object) -> None:
        """Have backward call nobody here once the optimizer is gone, although this is so only when Python has
        looked for cycles: the next one of the same parameters would seem to have a rival until then.
        """
        weakref.finalize(optimizer, self._hooks.remove).atexit = False

    # -- synchronize --

    def synchronize(self) -> None:
        """Wait until all gradients are the mean (or sum) over ranks, in ``p.grad``.

        A second call changes nothing, unless all ranks agree that the gradients are new ones, set by hand;
        once a rank has joined, they are not.

        Raises:
            ExchangeError, PayloadError: a rank did not answer, or sent what cannot be decoded. The step is
            rolled back.
        """
        again = not self.in_round and self.reducer.unapplied and not self.joining.joined
        if again and (self.joining.absent or not self.reducer.gradients_are_new()):
            return
        if self.balance is not None and not self.joining.joined:  # else it has computed nothing
            self.balance.computed()
        try:
            self._begin_round()
            missing = self._gradients.missing()
            if isinstance(self.reducer.clipping, HeldClipping):
                # Norms are added up in the order of names.
                self.reducer.clipping.agree(() if self.joining.joined else self._gradients.unfrozen(missing))
            for name in missing:
                self._put(name)
            self._launches.launch_full()
            self.connection.messages.flush()
            self._launches.finish(self.reducer.observers)
            self.joining.counted(self._plan.dense[0].absent)
            self.reducer.uneven = bool(self.joining.absent)
            self._plan.freeze(expected_order(self._hooks.reduced()), self.reducer.messages)
            self.insight.end_round(self._launches.launched, learns=not self.joining.absent)
            self._pace.end_round(pending.transport for _, pending in self._launches.launched)
            if not self.joining.all_joined:  # else nobody had a batch
                self.batches.took(self._hooks.passes)
            if self.balance is not None:
                self.balance.end_step(self.connection.messages)
            if self.hyperparameters is not None:
                self.hyperparameters.take_over(self.connection.messages)
        except BaseException as error:
            if self._launches.launched:
                self.connection.break_off(error)
            self._clock.broken_off()
            self._end_round()
            self.reducer.rollback()
            raise
        self._end_round()

    def _end_round(self) -> None:
        self.in_round = False
        self._launches.end_round()
        self._gradients.end_round()
        self._hooks.end_step()
        self._plan.discard()

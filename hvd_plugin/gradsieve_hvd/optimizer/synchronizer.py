"""One optimizer's gradients on their way through buckets: from backward's hooks to ``synchronize()``.

::

    hook: ready ─► TensorReduction.select ─► bucket ─► exchange thread            [backward goes on]
    synchronize: the rest ─► wait ─► TensorReduction.end_sum ─► p.grad = mean
    step: Reducer.before_update ─► the update ─► Reducer.commit
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from gradsieve import CompressionConfig, Policy, Steering
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.held_clipping import HeldClipping
from gradsieve_hvd.engine.in_flight import InFlightCheck
from gradsieve_hvd.engine.observer import Submitted
from gradsieve_hvd.engine.parameters import ParameterState
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.settings_check import settings_of
from gradsieve_hvd.engine.tensor_reduction import TensorReduction
from gradsieve_hvd.engine.tensors import require_known_dtype
from gradsieve_hvd.transport.base import Transport

from .buckets import Bucket, DenseBucket, FactoredBucket
from .exchange_thread import ExchangeThread, Pending
from .joining import Joining
from .messages import ThreadMessages
from .momentum import TakenOverMomentum
from .paths import Path
from .plan import BucketPlan, expected_order

if TYPE_CHECKING:
    from gradsieve_hvd.control.plan_exchange import PlanExchange

_Launched = tuple[Bucket, Pending[Any]]


class Synchronizer:
    """Sums an optimizer's gradients over ranks.

    A *round* begins with the first gradient that is ready, or with ``synchronize()``, and ends with it.
    Buckets leave in the plan's order on every rank, whichever fills first: what is ready early waits for its
    turn, and what is not ready when backward ends takes part with what there is, or with zeros.

    Args:
        named: all parameters by name, in the order of their registration.
        settings: the user's.
        transport: to the other ranks, for this object alone.
        path: how gradients travel.
        averages: whether gradients are averaged, rather than summed.
        passes: backward passes before a gradient is ready.
        sparse_as_dense: whether sparse gradients become dense ones; else they are refused.
        compared: what else must be equal on all ranks, JSON-able.
        momentum: the optimizer's, if it is applied here.
        group_of: tensors of one group share a bucket.
        predivide: by how much gradients that travel whole are divided before they are added up, rather than
            after.
        steering: has the densities of the job's coordinator followed, if this optimizer serves all ranks of a
            job that has one; else None.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Parameter]],
        settings: Settings,
        transport: Transport,
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
        self._named, self._path, self._momentum = dict(named), path, momentum
        self._thread = ExchangeThread(transport, settings.timeout_seconds)
        self.messages = ThreadMessages(self._thread)
        self._joining = Joining(self.messages)
        self._steering = steering
        self._control: PlanExchange | None = None
        self.reducer = Reducer(
            settings,
            self._sorted,
            self.messages,
            averages=averages,
            steering=steering,
            new_state=self._new_state,
            holds_when_clipping=True,
        )
        self._tensors = TensorReduction(self.reducer)
        self._plan = BucketPlan(settings.config, path, group_of)
        self._predivide = predivide
        self._compared, self._compresses = compared, path.compresses
        self.passes = passes
        self._sparse_as_dense = sparse_as_dense
        self._passes_left: dict[str, int] = {}
        self._ready: dict[str, Tensor] = {}  # what travels in this round
        self._launched: list[_Launched] = []
        self._in_flight = InFlightCheck()
        self.in_round, self._began = False, 0.0
        self._hooks: dict[str, RemovableHandle] = {}
        self._add_hooks()

    def _new_state(
        self, name: str, parameter: Parameter, config: CompressionConfig, policy: Policy
    ) -> ParameterState:
        state = self._path.new_state(name, parameter, config, policy)
        if self._momentum is not None:
            state.velocity = self._momentum.velocity(parameter, compressed=state.compressor is not None)
        return state

    def _reduced(self) -> list[tuple[str, Parameter]]:
        """Parameters that take part: all but those that have been frozen from the beginning."""
        return [(name, parameter) for name, parameter in self._named.items() if name in self._hooks]

    def _sorted(self) -> list[tuple[str, Parameter]]:
        return sorted(self._reduced())

    def add(self, name: str, parameter: Parameter) -> None:
        """Reduce one more parameter from the next round on; all ranks add the same ones.

        Raises:
            ConfigurationError: its type cannot be exchanged.
        """
        require_known_dtype(name, parameter.dtype)
        self._named[name] = parameter
        self._add_hooks()

    def _add_hooks(self) -> None:
        """Have backward tell when a gradient is ready; a parameter that is frozen gets its hook when it has
        thawed.
        """
        itself = weakref.ref(self)
        for name, parameter in self._named.items():
            if parameter.requires_grad and name not in self._hooks:

                def hook(_: Tensor, name: str = name) -> None:
                    alive = itself()
                    if alive is not None:
                        alive.backward_reached(name)

                self._hooks[name] = parameter.register_post_accumulate_grad_hook(hook)

    # -- backward --

    def backward_reached(self, name: str) -> None:
        """A backward pass has accumulated a gradient.

        Raises:
            ConfigurationError: more passes than were announced, or a sparse gradient.
            RankMismatch: in the first round: the ranks' settings differ.
        """
        left = self._passes_left.get(name, self.passes)
        if left <= 0:
            raise ConfigurationError(
                f"the gradient of '{name}' was computed more than backward_passes_per_step={self.passes} "
                "times before step() or synchronize(). Raise backward_passes_per_step to accumulate "
                "gradients locally."
            )
        self._passes_left[name] = left - 1
        if left == 1:
            self._begin_round()
            self._plan.note_ready(name)
            if not isinstance(self.reducer.clipping, HeldClipping):
                self._take(name)
                self._launch_full()

    def _begin_round(self) -> None:
        """1. If the sums of the last round were never applied, that step was skipped: roll it back.
        2. Take in parameters that have thawed; the same ones on all ranks.
        3. In the first round, compare settings.
        4. Give tensors that are new their buckets.
        """
        if self.in_round:
            return
        self._in_flight = InFlightCheck()
        if self.reducer.unapplied:
            self._skip()
        self._add_hooks()
        if not self.reducer.compared:
            self._compare_settings()
        new = [(name, p) for name, p in self._reduced() if name not in self._plan.names]
        self._plan.extend(expected_order(new))
        if self._momentum is not None:
            self._momentum.begin_round()
        self.reducer.begin_round()
        self.in_round, self._began = True, time.monotonic()

    def _skip(self) -> None:
        self._joining.tell(taken=False)
        self.reducer.skip()

    def _compare_settings(self) -> None:
        mine = settings_of(
            self.reducer.settings,
            self._sorted(),
            **self._compared,
            backward_passes_per_step=self.passes,
            coordinator=self._steering is not None,
        )
        number = self.reducer.compare(mine, compresses=self._compresses)
        if self._steering is not None:
            from gradsieve_hvd.control.plan_exchange import join

            self._control = join(f"own.{number}", self.messages, self._steering)
            self.reducer.observers.add(self._control.clock)

    def _take(self, name: str) -> None:
        """Put what is sent of a gradient into its bucket."""
        parameter, bucket = self._named[name], self._plan.bucket_of(name)
        gradient = self._gradient_of(name)
        state = self.reducer.state_of(name, parameter)
        if self._momentum is not None and state.velocity is not None:
            self._momentum.adopt(parameter, state.velocity, compressed=state.compressor is not None)
        self._ready[name] = gradient
        if isinstance(bucket, DenseBucket):
            factor = self._tensors.begin_dense(state, gradient) / self._predivide
            bucket.put(name, gradient if factor == 1.0 else gradient * factor)
        elif isinstance(bucket, FactoredBucket):
            assert state.factored is not None, "the plan and the states ask the same path"
            given = self._tensors.begin_factored(state, state.factored, gradient)
            bucket.put(name, given, state.factored.factor)
        else:
            assert state.layer is not None, "the plan and the states ask the same path"
            bucket.put(state, self._tensors.select(state, state.layer, gradient))
        self._in_flight.begin(state, gradient)  # what is frozen has been set to zero

    def _to_be_sent(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            if self._named[name].requires_grad and not self._joining.joined:
                yield name, self._gradient_of(name)

    def _gradient_of(self, name: str) -> Tensor:
        """Return a parameter's gradient, a dense one."""
        parameter = self._named[name]
        if parameter.grad is None:  # it takes part nevertheless: another rank may have one
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            if not self._sparse_as_dense:
                raise ConfigurationError(
                    f"the gradient of '{name}' is sparse (an embedding with sparse=True). Pass "
                    "sparse_as_dense=True, or build the embedding with sparse=False."
                )
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _launch_full(self) -> None:
        """Hand buckets to the thread, in the plan's order, as long as they are full."""
        buckets = self._plan.buckets
        while len(self._launched) < len(buckets) and buckets[len(self._launched)].full:
            bucket = buckets[len(self._launched)]
            if isinstance(bucket, DenseBucket):
                bucket.joined = self._joining.joined
            names = ", ".join(f"'{name}'" for name in list(bucket.sizes)[:3])
            begin = bucket.begun(time.monotonic() - self._began)
            pending = self._thread.submit(begin, f"{bucket.name} ({names}, ...)")
            self._launched.append((bucket, pending))

    # -- synchronize --

    def synchronize(self) -> None:
        """Wait until all gradients are the mean (or sum) over ranks, in ``p.grad``.

        A second call changes nothing, unless all ranks agree that the gradients are new ones, set by hand;
        once a rank has joined, they are not.

        Raises:
            ExchangeError, PayloadError: a rank did not answer, or sent what cannot be decoded. The step is
            rolled back.
        """
        again = not self.in_round and self.reducer.unapplied and not self._joining.joined
        if again and (self._joining.absent or not self.reducer.gradients_are_new()):
            return
        try:
            self._begin_round()
            missing = sorted(self._plan.names - self._ready.keys())  # norms are added up in this order
            if isinstance(self.reducer.clipping, HeldClipping):
                self.reducer.clipping.agree(self._to_be_sent(missing))
            for name in missing:
                self._take(name)
            self._launch_full()
            self.messages.flush()
            self.reducer.observers.waits_for(
                [b.name for b, pending in self._launched if not pending.finished]
            )
            for bucket, pending in self._launched:
                self._finish(bucket, pending)
            self.reducer.observers.all_arrived()
            self._joining.counted(self._plan.dense[0].absent)
            self.reducer.uneven = bool(self._joining.absent)
            self._plan.freeze(expected_order(self._reduced()), self.messages)
        except BaseException:
            self._end_round()
            self.reducer.rollback()
            raise
        self._end_round()

    def _finish(self, bucket: Bucket, pending: Pending[Any]) -> None:
        """Wait for a bucket and overwrite the gradients of its tensors with the sums."""
        result = pending.wait()
        if isinstance(bucket, DenseBucket):
            self.reducer.observers.arrived(bucket.name, 0)
            if result.refused:
                self.reducer.nonfinite.add_refused(list(bucket.sizes))
            for name, total in bucket.split(result):
                state, gradient = self.reducer.states[name], self._ready[name]
                self._in_flight.end(state)
                divisor = (self.messages.size if self.reducer.averages else 1) / self._predivide
                mean = total.div_(divisor).to(gradient.device, gradient.dtype).view(gradient.shape)
                self._tensors.end_dense(state, mean, gradient)
            return
        self.reducer.observers.submitted(Submitted(bucket.name, 0, pending.transport.sent_bytes))
        self.reducer.observers.arrived(bucket.name, pending.transport.received_bytes)
        if result.refused:
            self.reducer.nonfinite.add_refused(list(bucket.sizes))
        if isinstance(bucket, FactoredBucket):
            for name, total, left, factor in bucket.split(result):
                state, summed = self.reducer.states[name], None if result.refused else total
                assert state.factored is not None, "it was put into the bucket"
                self._in_flight.end(state)
                self._tensors.end_factored(state, state.factored, summed, left, factor, self._ready[name])
            return
        for name, summands, rejected in bucket.split(result):
            state = self.reducer.states[name]
            self._in_flight.end(state)
            self._tensors.end_sum(state, None if result.refused else summands, rejected, self._ready[name])

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Within, the optimizer applies what ``synchronize()`` left.

        Raises:
            ConfigurationError: a gradient was changed while it was exchanged.
            NonFiniteGradient: on all ranks.
            RankMismatch, ExchangeError: after the update; see `Reducer.commit`.
        """
        self._in_flight.raise_if_any()
        self.reducer.before_update()
        with nullcontext() if self._momentum is None else self._momentum.suspended():
            yield
        self._commit()

    def _commit(self) -> None:
        if self.reducer.exchanged():
            self._joining.tell(taken=True)
            self.reducer.commit()
            if self._control is not None:
                self._control.after_step(self.reducer.step, self.reducer.counter.last)

    # -- join --

    def join(self, optimizer: torch.optim.Optimizer) -> int:
        """Take part with nothing until all ranks have joined; return the one that did so last.

        1. Take part in a round. What it drops of the others' sum goes to this rank's residual, which waits.
        2. If all have joined, it was the last one: forget it.
        3. Else wait until those that train have taken the step, or skipped it, and do so, too, except for
           the update.
        4. When all have joined: take over weights, the state of ``optimizer`` (the user's) and velocities of
           the one that did so last, if steps were taken without this rank.

        Raises:
            ConfigurationError: gradients are being exchanged.
            NonFiniteGradient: on all ranks; those that go on join again, or train on.
            ExchangeError: a rank did not take part in time.
        """
        if self.in_round:
            raise ConfigurationError(
                "join() was called between backward() and step(), while gradients are exchanged. Take the "
                "step first, or leave out the last backward()."
            )
        self._joining.joined = self.reducer.abstains = True
        try:
            while not self._take_part_with_nothing():
                if self._joining.was_taken():
                    self._commit()
            self.reducer.skip()
            self.reducer.uneven = False
            last, state = self._joining.end(lambda: self._common_state(optimizer))
        finally:
            self._joining.joined = self.reducer.abstains = False
            self._forget_gradients()
        if state is not None:
            self._take_over(state, optimizer)
        return last

    def _common_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return what is the same on all ranks that train."""
        return {
            "parameters": {name: parameter.detach() for name, parameter in self._named.items()},
            "optimizer": optimizer.state_dict(),
            "velocities": {
                state.name: state.velocity.state_dict()
                for state in self.reducer.states.values()
                if state.compressor is None and state.velocity is not None
            },
        }

    def _take_over(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
        for name, value in state["parameters"].items():
            self._named[name].detach().copy_(value)
        optimizer.load_state_dict(state["optimizer"])
        for name, saved in state["velocities"].items():
            velocity = self.reducer.states[name].velocity
            assert velocity is not None, "settings are the same on all ranks"
            velocity.load_state_dict(saved)

    def _take_part_with_nothing(self) -> bool:
        """Return whether all ranks did so."""
        self._forget_gradients()
        self.synchronize()
        if self._joining.all_joined:
            return True
        self.reducer.before_update()
        return False

    def _forget_gradients(self) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def _end_round(self) -> None:
        self.in_round = False
        self._launched.clear()
        self._ready.clear()
        self._passes_left.clear()
        self._plan.discard()

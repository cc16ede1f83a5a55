"""Horovod's protocol of ``compress`` and ``decompress``, told to the engine.

Horovod calls ``compress`` once per tensor from backward hooks and again from every ``synchronize()``;
``decompress`` once per ``compress``. What must happen depends on what has happened to the step so far, which
the engine's `Reducer` keeps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from gradsieve import Steering, codec
from gradsieve.errors import ConfigurationError, GradsieveError
from gradsieve_hvd.control.plan import has_coordinator
from gradsieve_hvd.engine.in_flight import InFlightCheck
from gradsieve_hvd.engine.observer import SilentObserver
from gradsieve_hvd.engine.parameters import ParameterState, Phase
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.supported import NOT_SYNCHRONIZED, refuse_closure
from gradsieve_hvd.engine.tensor_reduction import TensorReduction
from gradsieve_hvd.engine.tensors import sparse_values
from gradsieve_hvd.transport.horovod_allgather import Allgather, HorovodMessages, wait_for

from . import horovod_internals
from .context import HorovodContext
from .horovod_internals import ADAPTER
from .horovod_tensors import placeholder, reducible
from .settings import horovod_settings, settings_of_waiting
from .supported import check_supported
from .watchdog import overdue, watch

if TYPE_CHECKING:
    from gradsieve_hvd.control.plan_exchange import PlanExchange


class HorovodAdapter(SilentObserver):
    """Stands between one Horovod optimizer and its `Reducer`; lives on the optimizer itself.

    open_contexts: handed out by ``compress`` and not yet redeemed by ``decompress``. control: the exchange
    with the job's coordinator, if it has one.
    """

    def __init__(self, optimizer: Any, settings: Settings) -> None:
        check_supported(optimizer, settings.config)
        self.optimizer, self.settings = optimizer, settings
        self._messages = HorovodMessages(optimizer.process_set, settings.timeout_seconds)
        self._steering = Steering() if has_coordinator() else None
        self.reducer = Reducer(
            settings,
            partial(horovod_internals.reduced_parameters, optimizer),
            self._messages,
            averages=horovod_internals.reduction_name(optimizer.op) == "Average",
            steering=self._steering,
        )
        self.reducer.clipping_watch.own_changes = horovod_internals.CHANGES_AFTER_DECOMPRESS
        self.tensors = TensorReduction(self.reducer)
        self.reducer.observers.add(self)
        self.open_contexts: dict[Parameter, HorovodContext] = {}
        self.control: PlanExchange | None = None
        self._watched = False
        self._forget_step()
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _forget_step(self) -> None:
        self._repeated: set[Parameter] = set()  # of contexts under way that repeat an exchange
        self._in_flight = InFlightCheck()
        self._waits = False

    @classmethod
    def of(cls, optimizer: Any, settings: Settings) -> HorovodAdapter:
        """The optimizer's adapter, made at the first call.

        Raises:
            ConfigurationError: the optimizer is used in a way that gradsieve cannot serve (see
                `check_supported`).
        """
        existing: HorovodAdapter | None = getattr(optimizer, ADAPTER, None)
        if existing is None:
            existing = cls(optimizer, settings)
            setattr(optimizer, ADAPTER, existing)
        return existing

    # -- compress --

    def start(self, parameter: Parameter, gradient: Tensor) -> tuple[Tensor, HorovodContext]:
        """Begin a gradient's exchange; return the tensor that Horovod shall all-reduce beside it, and the
        context.

        1. First call of all: compare settings across ranks.
        2. A gradient that was exchanged, and no backward pass since (a second ``synchronize()``, clipped in
           between or not): send nothing, unless all ranks agree that it is a new one, set by hand.
        3. A new gradient while the last was never applied (the step was skipped): roll all tensors of that
           step back.
        4. Compressed: start a named allgather of the payload. Dense: Horovod reduces the gradient itself
           (bf16 as fp32).
        """
        self._compare_settings()
        self.reducer.begin_round()
        name = horovod_internals.name_of(self.optimizer, parameter)
        state = self.reducer.state_of(name, parameter)
        came_from_backward = horovod_internals.backward_reached(self.optimizer, parameter)
        if state.phase is Phase.EXCHANGED and not came_from_backward and not self._are_new():
            self._repeated.add(parameter)
            return placeholder(gradient), HorovodContext(self, state, gradient, repeated=True)
        if self.reducer.interrupts(state, fresh=came_from_backward):
            self.reducer.skip()
        sent, context = self._send(state, gradient)
        self.open_contexts[parameter] = context
        self._in_flight.begin(state, gradient)
        return sent, context

    def _send(self, state: ParameterState, gradient: Tensor) -> tuple[Tensor, HorovodContext]:
        if state.layer is None:
            factor = self.tensors.begin_dense(state, gradient)
            sent = reducible(gradient)
            return sent if factor == 1.0 else sent * factor, HorovodContext(self, state, gradient)
        payload = self.tensors.payload(state, state.layer, gradient)
        gather = Allgather(payload, state.name, self.optimizer.process_set)
        return placeholder(gradient), HorovodContext(self, state, gradient, gather)

    def _are_new(self) -> bool:
        """Whether gradients that come again without a backward pass are new; asked once in a
        ``synchronize()``.
        """
        return not self._repeated and self.reducer.gradients_are_new()

    def _compare_settings(self) -> None:
        if self.reducer.compared:
            return
        optimizer, timeout = self.optimizer, self.settings.timeout_seconds
        coordinated = self._steering is not None
        mine = horovod_settings(optimizer, self.settings, coordinated=coordinated)
        waiting = partial(settings_of_waiting, optimizer, coordinated=coordinated)
        number = self.reducer.compare(mine, waiting)
        if not self._watched:
            watch(self, timeout)
        self._watched = True
        if self.control is not None:
            self.reducer.observers.remove(self.control.clock)
            self.control = None
        if self._steering is not None:
            from gradsieve_hvd.control.plan_exchange import join

            if optimizer.process_set.process_set_id == 0:
                self.control = join(str(number), self._messages, self._steering)
                self.reducer.observers.add(self.control.clock)

    # -- decompress --

    def finish(self, reduced: Tensor, context: HorovodContext) -> Tensor:
        """Return what becomes ``p.grad``; ``context.gradient`` is overwritten with it.

        Raises:
            ExchangeError, PayloadError: a rank did not answer, or sent what cannot be decoded. The gradient
            is untouched.
        """
        state, gradient = context.state, context.gradient
        if context.repeated:
            self._repeated.discard(state.parameter)
            return gradient
        self._begin_to_wait()
        self.open_contexts.pop(state.parameter, None)
        gathered = None if context.gather is None else context.gather.wait(self.settings.timeout_seconds)
        self.reducer.observers.arrived(state.name, 0 if gathered is None else gathered.numel())
        self._in_flight.end(state)
        if gathered is None:
            self.tensors.end_dense(state, reduced, gradient)
        else:
            self.tensors.end_payloads(state, self._decoded(state, gathered), gradient)
        if not self.open_contexts:
            self.reducer.observers.all_arrived()
        return gradient

    def _decoded(self, state: ParameterState, gathered: Tensor) -> list[codec.Payload]:
        try:
            return codec.split(gathered, self._messages.size, state.parameter.numel())
        except GradsieveError as error:
            error.add_note(f"while decoding the gradient of '{state.name}'")
            raise

    def _begin_to_wait(self) -> None:
        if not self._waits:
            self._waits = True
            under_way = [each for each in self.open_contexts.values() if each.gather is not None]
            missing = [each.state.name for each in under_way if each.gather and not each.gather.finished()]
            self.reducer.observers.waits_for(missing)

    def check_sparse_embedding(self, parameter: Parameter, reduced: Tensor) -> None:
        """Look at a sparse gradient that Horovod has reduced by itself, and at this rank's own, which is
        still in ``parameter.grad``.
        """
        if self.settings.nonfinite == "raise" and parameter.grad is not None:
            name = horovod_internals.name_of(self.optimizer, parameter)
            self.reducer.nonfinite.check_local(name, sparse_values(parameter.grad))
            self.reducer.nonfinite.check_reduced(name, sparse_values(reduced))

    # -- the step --

    def _before_step(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Optimizer step pre-hook. Horovod's optimizer runs it twice: before its ``synchronize()`` and after,
        before the update.

        1. Refuse what would be silently wrong; adopt parameters that were added; wait for what is in flight.
        2. After ``synchronize()``: see `Reducer.before_update`. Not before, as the gradient that is about to
           be exchanged may be a new one.

        Raises:
            ConfigurationError: a closure, ``synchronize()`` skipped while gradients are in flight, gradients
                changed there, added parameters that cannot be exchanged.
            NonFiniteGradient: on all ranks, here rather than in ``decompress``: now all of Horovod's handles
                are finished.
        """
        refuse_closure(arguments, keywords)
        if self.open_contexts and horovod_internals.skips_synchronize(self.optimizer):
            raise ConfigurationError(NOT_SYNCHRONIZED)
        self._in_flight.raise_if_any()
        if horovod_internals.adopt_added_parameters(self.optimizer) and self.reducer.unapplied:
            self.optimizer.synchronize()  # the user's own call came before Horovod knew of the new ones
        under_way = [each.gather for each in self.open_contexts.values() if each.gather is not None]
        if under_way and horovod_internals.everything_submitted(self.optimizer):
            # Waiting here sleeps and can raise; waiting in Horovod's synchronize() spins and cannot.
            self._begin_to_wait()
            wait_for(under_way, self.settings.timeout_seconds)
            self.reducer.observers.all_arrived()
        if not horovod_internals.will_synchronize(self.optimizer):
            self.reducer.before_update()

    def _after_step(self, *_: Any) -> None:
        """Optimizer step post-hook, also run twice: the update has been made."""
        if self.reducer.exchanged():
            self.reducer.commit()
            if self.control is not None:
                self.control.after_step(self.reducer.step, self.reducer.counter.last)

    def committed(self) -> None:
        """Forget the step: it has been taken."""
        self._waits = False

    def rolled_back(self) -> None:
        """Forget the step: it is not going to be taken."""
        self.open_contexts.clear()
        self._forget_step()

    def stalled(self) -> list[str]:
        """Names of the tensors, compressed or dense, whose exchange has been under way for longer than the
        time-out.

        Called by the watchdog's thread: works on a copy.
        """
        contexts = list(self.open_contexts.values())
        return overdue(self.optimizer, contexts, self.settings.timeout_seconds)

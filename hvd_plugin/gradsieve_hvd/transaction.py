"""One optimizer's gradients in exchange: a step is a transaction over all of its tensors.

::

    IDLE ──start──► IN_FLIGHT ──finish──► EXCHANGED ──the optimizer has stepped──► IDLE   residuals committed
                                             │
                                             └──backward() without a step──► IDLE        residuals rolled back

Horovod calls ``compress`` once per tensor from backward hooks and again from every ``synchronize()``;
``decompress`` once per ``compress``. What must happen depends on what has happened to the step so far, which
is what this module keeps.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from gradsieve import Policy, Steering

from . import seam
from .control.plan import has_coordinator
from .drain import Drain, empty_exchange_seconds
from .entries import Entry, Phase, Ticket
from .in_flight import InFlightCheck
from .second_synchronize import agree_are_new
from .settings_check import TRANSACTION, compare_settings, settings_of, settings_of_waiting, warn_if_all_dense
from .step_counter import StepCounter
from .supported import check_supported, refuse_closure
from .tensor_exchange import TensorExchange
from .tensors import token
from .transport.horovod_allgather import wait_for
from .watchdog import overdue, watch
from .weights_check import WeightsCheck

if TYPE_CHECKING:
    from .compressor import HorovodCompressor
    from .control.plan_exchange import PlanExchange


@dataclass(eq=False)
class Transaction:
    """The state that gradsieve keeps for one Horovod optimizer; lives on the optimizer itself."""

    optimizer: Any
    compressor: HorovodCompressor
    entries: dict[Parameter, Entry] = field(default_factory=dict)
    # Handed out by compress and not yet redeemed by decompress.
    open_tickets: dict[Parameter, Ticket] = field(default_factory=dict)
    step: int = 0  # optimizer steps that were really taken: the clock of density warm-up, equal on all ranks
    counter: StepCounter = field(default_factory=StepCounter)
    control: PlanExchange | None = None  # with the job's coordinator, if it has one
    _settings_compared: bool = False
    _watched: bool = False
    _number: int | None = None  # tells optimizers apart, the same on all ranks
    _unapplied: bool = False  # some tensor was exchanged and the optimizer has not stepped since
    _repeated: set[Parameter] = field(default_factory=set)  # of tickets under way that repeat an exchange

    def __post_init__(self) -> None:
        check_supported(self.optimizer, self.compressor.config)
        self._steering = Steering() if has_coordinator() else None
        self.policy = self.new_policy()
        self._tensors = TensorExchange(self.optimizer, self.compressor, self.counter)
        self._in_flight = InFlightCheck()
        self.clipping = self._tensors.clipping
        self._drain = Drain()
        self._weights_check = WeightsCheck(self.optimizer, self.compressor)
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)

    @classmethod
    def of(cls, optimizer: Any, compressor: HorovodCompressor) -> Transaction:
        """The optimizer's transaction, made at the first call.

        Raises:
            ConfigurationError: the optimizer is used in a way that gradsieve cannot serve (see
                `check_supported`).
        """
        existing: Transaction | None = getattr(optimizer, TRANSACTION, None)
        if existing is None:
            existing = cls(optimizer, compressor)
            setattr(optimizer, TRANSACTION, existing)
        return existing

    def replace(self, entries: list[Entry], policy: Policy) -> None:
        """Forget everything that was remembered and go on from these; other parameters start anew."""
        self.rollback()
        self.entries = {entry.parameter: entry for entry in entries}
        self.policy = policy

    def new_policy(self) -> Policy:
        """A policy as of before the first step, under the plan of the job's coordinator if it has one."""
        return self.compressor.config.policy(self._steering)

    def restart(self) -> None:
        """Begin as in a new process, on all ranks together: the ranks may be others than before."""
        self.rollback()
        self._weights_check.restart()
        self.clipping.restart()
        self._settings_compared = False

    # -- compress --

    def start(self, parameter: Parameter, gradient: Tensor) -> tuple[Tensor, Ticket]:
        """Begin a gradient's exchange; return the tensor that Horovod shall all-reduce beside it, and the
        ticket.

        1. First call of all: compare settings across ranks.
        2. A gradient that was exchanged, and no backward pass since (a second ``synchronize()``, clipped in
           between or not): send nothing, unless all ranks agree that it is a new one, set by hand.
        3. A new gradient while the last was never applied (the step was skipped): roll all tensors of that
           step back.
        4. Exchange it: see `TensorExchange.start`.
        """
        self._compare_settings()
        self._weights_check.begin_round()
        if parameter not in self.entries:
            name = seam.name_of(self.optimizer, parameter)
            self.entries[parameter] = Entry.of(name, parameter, self.compressor.config, self.policy)
        entry = self.entries[parameter]
        came_from_backward = seam.backward_reached(self.optimizer, parameter)
        if entry.phase is Phase.EXCHANGED and not came_from_backward and not self._are_new():
            self._repeated.add(parameter)
            return token(gradient), Ticket(self, entry, gradient, repeated=True)
        if entry.phase is not Phase.IDLE or (came_from_backward and self._unapplied):
            self._skip_step()
        entry.phase = Phase.IN_FLIGHT
        sent, ticket = self._tensors.start(self, entry, gradient)
        self.open_tickets[parameter] = ticket
        self._in_flight.begin(ticket)
        if self.control is not None:
            self.control.clock.worked()
        return sent, ticket

    def _are_new(self) -> bool:
        """Whether gradients that come again without a backward pass are new: all ranks agree, once in a
        ``synchronize()``. A rank that has none left (``zero_grad()``, no backward pass) does not ask: new.
        """
        if self._repeated:
            return False
        exchanged = [entry for entry in self.entries.values() if entry.phase is Phase.EXCHANGED]
        if not any(entry.has_gradient for entry in exchanged):
            return True
        refused = self._tensors.nonfinite.refused
        return agree_are_new(exchanged, refused, self.optimizer.process_set, self.compressor.timeout_seconds)

    def _compare_settings(self) -> None:
        if not self._settings_compared:
            process_set, timeout = self.optimizer.process_set, self.compressor.timeout_seconds
            coordinated = self._steering is not None
            mine = settings_of(self.optimizer, self.compressor, coordinated=coordinated)
            waiting = partial(settings_of_waiting, self.optimizer, coordinated=coordinated)
            self._number = compare_settings(mine, self._number, process_set, timeout, waiting)
            self.clipping.number = self._number
            self._settings_compared = True
            warn_if_all_dense(self.optimizer, self.compressor)
            if not self._watched:
                watch(self, timeout)
            self._watched = True
            if self._steering is not None:
                from .control.plan_exchange import join

                self.control = join(str(self._number), process_set, timeout, self._steering)
            if self.policy.times_exchanges:
                self.policy.observe_exchange(empty_exchange_seconds(process_set, timeout), 0)

    # -- decompress --

    def finish(self, reduced: Tensor, ticket: Ticket) -> Tensor:
        """Return what becomes ``p.grad``; ``ticket.gradient`` is overwritten with it.

        Raises:
            ExchangeError, PayloadError: a rank did not answer, or sent what cannot be decoded. The gradient
            is untouched.
        """
        entry, gradient = ticket.entry, ticket.gradient
        if ticket.repeated:
            self._repeated.discard(entry.parameter)
            return gradient
        self._drain.begin(self.open_tickets.values())
        self.open_tickets.pop(entry.parameter, None)
        gathered = None if ticket.gather is None else ticket.gather.wait(self.compressor.timeout_seconds)
        if self.control is not None:
            self.control.clock.arrived()
        self._in_flight.end(ticket)
        if gathered is None:
            self._tensors.finish_dense(reduced, ticket)
        else:
            self._drain.arrived(ticket, gathered.numel())
            self._tensors.finish_sparse(gathered, ticket)
        if self.control is not None:
            self.control.clock.worked()
        if not self.open_tickets:
            self._drain.end()
        entry.phase = Phase.EXCHANGED
        self._unapplied = True
        entry.exchanged = weakref.ref(gradient)
        return gradient

    def check_sparse_embedding(self, parameter: Parameter, reduced: Tensor) -> None:
        """See `TensorExchange.check_sparse_embedding`."""
        self._tensors.check_sparse_embedding(parameter, reduced)

    # -- the step --

    def _before_step(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Optimizer step pre-hook. Horovod's optimizer runs it twice: before its ``synchronize()`` and after,
        before the update.

        1. Refuse what would be silently wrong; adopt parameters that were added; wait for what is in flight.
        2. After ``synchronize()``: raise if a gradient must not be applied. Not before, as the one that is
           about to be exchanged may be a new one.
        3. Take the gradients of frozen parameters away, so that neither momentum nor weight decay moves them.

        Raises:
            ConfigurationError: a closure, gradients changed in flight, added parameters that cannot be
                exchanged.
            NonFiniteGradient: on all ranks, here rather than in ``decompress``: now all of Horovod's handles
                are finished.
        """
        refuse_closure(arguments, keywords)
        self._in_flight.raise_if_any(self.open_tickets.values())
        if seam.adopt_added_parameters(self.optimizer) and self._unapplied:
            self.optimizer.synchronize()  # the user's own call came before Horovod knew of the new ones
        in_flight = [ticket.gather for ticket in self.open_tickets.values() if ticket.gather is not None]
        if in_flight and seam.everything_submitted(self.optimizer):
            # Waiting here sleeps and can raise; waiting in Horovod's synchronize() spins and cannot.
            self._drain.begin(self.open_tickets.values())
            wait_for(in_flight, self.compressor.timeout_seconds)
            self._drain.end()
        if seam.will_synchronize(self.optimizer):
            return
        if self.compressor.nonfinite == "raise":
            self._tensors.nonfinite.raise_if_any(self.optimizer.process_set, self.compressor.timeout_seconds)
        for entry in self.entries.values():
            if entry.held:
                entry.parameter.grad = None
        self._tensors.clipping_watch.before_update()

    def _after_step(self, *_: Any) -> None:
        """Optimizer step post-hook, also run twice: the update has been made, so what was sent has been
        used.
        """
        exchanged = [entry for entry in self.entries.values() if entry.phase is Phase.EXCHANGED]
        if not exchanged:
            return
        for entry in exchanged:
            entry.commit()
        measured, self._drain = self._drain.measured(), Drain()
        if measured is not None:
            self.policy.observe_exchange(*measured)
        self.policy.commit()
        self._tensors.nonfinite.clear()
        self.counter.close_step()
        self._unapplied = False
        self.step += 1
        if self.control is not None:
            self.control.after_step(self.step, self.counter.last)
        self.clipping.end_step()
        self._weights_check.end_round(self._number, self.step)

    def _skip_step(self) -> None:
        exchanged = self._unapplied
        self.rollback()
        if exchanged:
            self._weights_check.end_round(self._number, self.step)

    def rollback(self) -> None:
        """Give every tensor of a step that was never applied its residual back, bit for bit."""
        for entry in self.entries.values():
            entry.rollback()
        self.policy.rollback()
        self._drain = Drain()
        self.open_tickets.clear()
        self._repeated.clear()
        self._in_flight = InFlightCheck()
        self._unapplied = False
        self._tensors.rollback()
        self.counter.discard_step()

    def waiting(self) -> dict[str, float]:
        """The L2 norms of what waits in the residuals of frozen parameters, by name."""
        return {
            entry.name: entry.layer.waiting()
            for entry in self.entries.values()
            if entry.frozen and entry.layer is not None
        }

    def stalled(self) -> list[str]:
        """Names of the tensors, compressed or dense, whose exchange has been under way for longer than the
        time-out.

        Called by the watchdog's thread: works on a copy.
        """
        return overdue(self.optimizer, list(self.open_tickets.values()), self.compressor.timeout_seconds)

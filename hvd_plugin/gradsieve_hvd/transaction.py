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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import LayerCompressor, Policy, Steering, codec
from gradsieve.errors import GradsieveError
from gradsieve.kernels.magnitude import all_finite

from . import seam
from .control.plan import has_coordinator
from .drain import Drain, empty_exchange_seconds
from .entries import Entry, Phase, Ticket
from .exchange import Allgather, wait_for
from .nonfinite import NonFiniteLog
from .settings_check import compare_settings, settings_of, warn_if_all_dense
from .step_counter import StepCounter
from .tensors import reducible, sum_into, token
from .watchdog import overdue, watch
from .weights_check import WeightsCheck

if TYPE_CHECKING:
    from .compressor import HorovodCompressor
    from .control.plan_exchange import PlanExchange

_ATTRIBUTE = "_gradsieve_transaction"


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

    def __post_init__(self) -> None:
        seam.check_supported(self.optimizer)
        self._steering = Steering() if has_coordinator() else None
        self.policy = self.new_policy()
        self._nonfinite = NonFiniteLog()
        self._drain = Drain()
        self._weights_check = WeightsCheck(
            self.optimizer, self.compressor.check_weights_every, self.compressor.timeout_seconds
        )
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)

    @classmethod
    def of(cls, optimizer: Any, compressor: HorovodCompressor) -> Transaction:
        """The optimizer's transaction, made at the first call.

        Raises:
            ConfigurationError: the optimizer is used in a way that gradsieve cannot serve (see
                `seam.check_supported`).
        """
        existing: Transaction | None = getattr(optimizer, _ATTRIBUTE, None)
        if existing is None:
            existing = cls(optimizer, compressor)
            setattr(optimizer, _ATTRIBUTE, existing)
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
        self._settings_compared = False

    # -- compress --

    def start(self, parameter: Parameter, gradient: Tensor) -> tuple[Tensor, Ticket]:
        """Begin a gradient's exchange; return the tensor that Horovod shall all-reduce beside it, and the
        ticket.

        1. First call of all: compare settings across ranks.
        2. A gradient that was exchanged and is still the same (a second ``synchronize()``, clipped in between
           or not): send nothing.
        3. A new gradient while the last was never applied (the step was skipped): roll all tensors of that
           step back.
        4. Below the size threshold: the gradient itself goes into Horovod's all-reduce (bf16 as fp32).
        5. Else: add the residual, select, encode, start a named allgather of the payload.
        """
        self._compare_settings()
        if parameter not in self.entries:
            name = seam.name_of(self.optimizer, parameter)
            self.entries[parameter] = Entry.of(name, parameter, self.compressor.config, self.policy)
        entry = self.entries[parameter]
        if entry.phase is not Phase.IDLE:
            if entry.phase is Phase.EXCHANGED and not self._is_new(entry, gradient):
                return token(gradient), Ticket(self, entry, gradient, repeated=True)
            self._skip_step()
        elif seam.backward_reached(self.optimizer, parameter) and self._unapplied:
            self._skip_step()
        entry.phase = Phase.IN_FLIGHT
        sent, ticket = (
            self._start_dense(entry, gradient)
            if entry.layer is None
            else self._start_sparse(entry, entry.layer, gradient)
        )
        self.open_tickets[parameter] = ticket
        if self.control is not None:
            self.control.clock.worked()
        return sent, ticket

    def _is_new(self, entry: Entry, gradient: Tensor) -> bool:
        same_tensor = entry.exchanged is not None and entry.exchanged() is gradient
        return not same_tensor or seam.backward_reached(self.optimizer, entry.parameter)

    def _start_dense(self, entry: Entry, gradient: Tensor) -> tuple[Tensor, Ticket]:
        if self.compressor.nonfinite == "raise":
            self._nonfinite.check_local(entry.name, gradient)
        self.counter.add_dense(gradient)
        scale = 1.0 if entry.velocity is None else self.compressor.loss_scale()
        return reducible(gradient), Ticket(self, entry, gradient, scale)

    def _start_sparse(self, entry: Entry, layer: LayerCompressor, gradient: Tensor) -> tuple[Tensor, Ticket]:
        scale = self.compressor.loss_scale()
        payload = layer.compress(gradient, step=self.step, unscale=1.0 / scale)
        gather = Allgather(payload, entry.name, self.optimizer.process_set)
        self.counter.add_payload(payload, layer.kept, gradient.numel())
        return token(gradient), Ticket(self, entry, gradient, scale, gather)

    def _compare_settings(self) -> None:
        if not self._settings_compared:
            process_set, timeout = self.optimizer.process_set, self.compressor.timeout_seconds
            mine = settings_of(self.optimizer, self.compressor, coordinated=self._steering is not None)
            self._number = compare_settings(mine, self._number, process_set, timeout)
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
            return gradient
        self._drain.begin(self.open_tickets.values())
        self.open_tickets.pop(entry.parameter, None)
        gathered = None if ticket.gather is None else ticket.gather.wait(self.compressor.timeout_seconds)
        if self.control is not None:
            self.control.clock.arrived()
        if gathered is None:
            self._finish_dense(reduced, ticket)
        else:
            self._finish_sparse(ticket, gathered)
        if self.control is not None:
            self.control.clock.worked()
        if not self.open_tickets:
            self._drain.end()
        entry.phase = Phase.EXCHANGED
        self._unapplied = True
        entry.exchanged = weakref.ref(gradient)
        return gradient

    def _finish_dense(self, reduced: Tensor, ticket: Ticket) -> None:
        if self.compressor.nonfinite == "raise":
            self._nonfinite.check_reduced(reduced)
        velocity, gradient = ticket.entry.velocity, ticket.gradient
        if velocity is not None and all_finite(reduced):
            reduced = velocity.advance(reduced, 1.0 / ticket.scale).mul(ticket.scale).view(gradient.shape)
            velocity.keep()
        if reduced is not gradient:
            gradient.copy_(reduced)

    def _finish_sparse(self, ticket: Ticket, gathered: Tensor) -> None:
        ranks = self.optimizer.process_set.size()
        self.counter.add_received(gathered)
        self._drain.arrived(ticket, gathered.numel())
        try:
            payloads = codec.split(gathered, ranks, ticket.gradient.numel())
        except GradsieveError as error:
            error.add_note(f"while decoding the gradient of '{ticket.entry.name}'")
            raise
        refused = [rank for rank, payload in enumerate(payloads) if payload.refused]
        if refused:
            self._nonfinite.add_refusals(ticket.entry.name, refused)
            ticket.gradient.fill_(
                torch.nan
            )  # a loss scaler must see it, and nothing may ever be trained with it
            return
        divisor = ranks if seam.reduction_name(self.optimizer.op) == "Average" else 1
        sum_into(ticket.gradient, payloads, ticket.scale / divisor)

    # -- the step --

    def _before_step(self, *_: Any) -> None:
        """Optimizer step pre-hook. Horovod's optimizer runs it twice: before its ``synchronize()`` and after,
        before the update.

        Raises:
            NonFiniteGradient: on all ranks, here rather than in ``decompress``: now all of Horovod's handles
                are finished.
        """
        if seam.adopt_added_parameters(self.optimizer) and self._unapplied:
            self.optimizer.synchronize()  # the user's own call came before Horovod knew of the new ones
        in_flight = [ticket.gather for ticket in self.open_tickets.values() if ticket.gather is not None]
        if in_flight and seam.everything_submitted(self.optimizer):
            # Waiting here sleeps and can raise; waiting in Horovod's synchronize() spins and cannot.
            self._drain.begin(self.open_tickets.values())
            wait_for(in_flight, self.compressor.timeout_seconds)
            self._drain.end()
        if self.compressor.nonfinite == "raise" and self._unapplied:
            self._nonfinite.raise_if_any(self.optimizer.process_set, self.compressor.timeout_seconds)

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
        self._nonfinite.clear()
        self.counter.close_step()
        self._unapplied = False
        self.step += 1
        if self.control is not None:
            self.control.after_step(self.step, self.counter.last)
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
        self._unapplied = False
        self._nonfinite.clear()
        self.counter.discard_step()

    def stalled(self) -> list[str]:
        """Names of the tensors, compressed or dense, whose exchange has been under way for longer than the
        time-out.

        Called by the watchdog's thread: works on a copy.
        """
        return overdue(self.optimizer, list(self.open_tickets.values()), self.compressor.timeout_seconds)

"""A step over all of one optimizer's gradients, as a transaction.

::

    IDLE ──sent──► IN_FLIGHT ──end──► EXCHANGED ──commit: the optimizer has stepped──► IDLE   residuals final
                                          │
                                          └──rollback: it is not going to──► IDLE      residuals as before

It knows neither how gradients travel nor an optimizer: front doors tell it what happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, Policy, Steering
from gradsieve_hvd.transport.messages import Messages

from .agreed_clipping import AgreedClipping
from .clipping_watch import ClippingWatch
from .exposed_communication import ExposedCommunication, empty_exchange_seconds
from .held_clipping import HeldClipping
from .nonfinite import NonFiniteLog
from .observer import StepObservers
from .parameters import ParameterState, Phase
from .second_synchronize import agree_are_new
from .settings import Settings
from .settings_check import Description, compare_settings, warn_if_all_dense
from .statistics import StepCounter
from .weights_check import WeightsCheck

NamedParameters = Callable[[], Sequence[tuple[str, Parameter]]]
"""Returns all parameters whose gradients are reduced, sorted by name; they may become more."""

NewState = Callable[[str, Parameter, CompressionConfig, Policy], ParameterState]
"""Returns what is kept of a parameter, as of before its first step."""


class Reducer:
    """What one rank keeps of one optimizer's gradients, and where the step over them stands.

    Args:
        settings: the user's.
        named_parameters: the optimizer's.
        messages: to the other ranks.
        averages: whether gradients are averaged over the ranks, rather than summed.
        steering: the plan that the policy follows; None for none.
        new_state: makes what is kept of a parameter.
        holds_when_clipping: whether nothing of a step is sent before all its gradients are there, with
            ``clip_global_norm``.

    observers: are told what happens. counter: of bytes. states: by name, from their first gradients on.
    step: optimizer steps that were really taken, the clock of density warm-up, equal on all ranks. number:
    tells optimizers apart, the same on all ranks; None until they have agreed on it. compared: whether they
    have compared their settings. weight: of this rank's gradients in the sum. abstains: whether this rank
    takes part with nothing, and does not update its weights. uneven: whether some rank does so in this round.
    measures_energy: whether this round's selections are to be. unapplied: whether some gradient was exchanged
    and the optimizer has not stepped since.
    """

    def __init__(
        self,
        settings: Settings,
        named_parameters: NamedParameters,
        messages: Messages,
        *,
        averages: bool,
        steering: Steering | None = None,
        new_state: NewState = ParameterState.of,
        holds_when_clipping: bool = False,
    ) -> None:
        self.settings, self.named_parameters, self.messages = settings, named_parameters, messages
        self.averages = averages
        self.observers, self.counter = StepObservers(), StepCounter()
        self.observers.add(self.counter, ExposedCommunication(self._observe_exchange))
        self.states: dict[str, ParameterState] = {}
        self.step = 0
        self.number: int | None = None
        self.compared = False
        self.weight = 1.0
        self.abstains = self.uneven = self.measures_energy = False
        self.unapplied = False
        self.nonfinite = NonFiniteLog()
        self.clipping: AgreedClipping | HeldClipping = AgreedClipping(
            settings, named_parameters, messages, averages=averages
        )
        if holds_when_clipping and settings.clip_global_norm is not None:
            self.clipping = HeldClipping(settings.clip_global_norm, settings, messages, averages=averages)
        self.clipping_watch = ClippingWatch()
        self._weights_check = WeightsCheck(named_parameters, messages, settings.check_weights_every)
        self._steering, self._new_state = steering, new_state
        self.policy = self.new_policy()

    def _observe_exchange(self, seconds: float, size: int) -> None:
        self.policy.observe_exchange(seconds, size)

    def new_policy(self) -> Policy:
        """Return a policy as of before the first step, under the plan in force."""
        return self.settings.config.policy(self._steering)

    def replace(self, states: Sequence[ParameterState], policy: Policy, step: int) -> None:
        """Forget everything that was remembered and go on from these; other parameters start again."""
        self.rollback()
        self.states = {state.name: state for state in states}
        self.policy, self.step = policy, step

    def restart(self) -> None:
        """Begin as in a new process, on all ranks together: the ranks may be others than before."""
        self.rollback()
        self._weights_check.restart()
        self.clipping.restart()
        self.compared = False

    def compare(
        self,
        mine: Description,
        others: Callable[[], list[dict[str, Any]]] = list,
        *,
        compresses: bool = True,
    ) -> int:
        """Compare settings with the other ranks, and return the optimizer's number; all ranks call it before
        the first exchange.

        1. Compare; see `compare_settings`.
        2. Rank 0 warns if nothing is compressed, unless that is meant (``compresses=False``).
        3. If the policy times exchanges, time empty ones.

        Raises:
            RankMismatch: on every rank.
        """
        timeout = self.settings.timeout_seconds
        number = compare_settings(mine, self.number, self.messages, timeout, others)
        self.number = self.clipping.number = number
        self.compared = True
        if compresses and self.messages.rank == 0:
            warn_if_all_dense(self.settings, self.named_parameters())
        if self.policy.times_exchanges:
            self.policy.observe_exchange(empty_exchange_seconds(self.messages), 0)
        return number

    # -- the step --

    def state_of(self, name: str, parameter: Parameter) -> ParameterState:
        """Return what is kept of a parameter."""
        if name not in self.states:
            self.states[name] = self.new_state(name, parameter, self.policy)
        return self.states[name]

    def new_state(self, name: str, parameter: Parameter, policy: Policy) -> ParameterState:
        """Return what is kept of a parameter, as of before its first step."""
        return self._new_state(name, parameter, self.settings.config, policy)

    def begin_round(self) -> None:
        """A gradient is about to be exchanged; further calls in the same step do nothing."""
        self._weights_check.begin_round()

    def interrupts(self, state: ParameterState, *, fresh: bool) -> bool:
        """Whether a gradient can only mean that the step under way is not going to be taken: that gradient
        has been exchanged, or it is ``fresh`` (from a backward pass) and others have been.
        """
        return state.phase is not Phase.IDLE or (fresh and self.unapplied)

    def end(self, state: ParameterState, gradient: Tensor) -> None:
        """The parameter's ``gradient`` has been overwritten with the sum."""
        self.observers.applied(state.name)
        state.phase, state.sum = Phase.EXCHANGED, weakref.ref(gradient)
        self.unapplied = True

    def exchanged(self) -> list[ParameterState]:
        """Return the parameters whose gradients are sums that wait for the optimizer's step."""
        return [state for state in self.states.values() if state.phase is Phase.EXCHANGED]

    def gradients_are_new(self) -> bool:
        """Whether gradients that have been exchanged come again as new ones, set by hand, rather than as what
        the exchange left: all ranks agree. A rank that has none left (``zero_grad()``, no backward pass) does
        not ask: new.

        Raises:
            ExchangeError: a rank did not answer in time.
        """
        exchanged = self.exchanged()
        if not any(state.has_gradient for state in exchanged):
            return True
        return agree_are_new(exchanged, self.nonfinite.refused, self.messages)

    def commit(self) -> None:
        """The optimizer has stepped, so what was sent has been used.

        Raises:
            RankMismatch: the ranks' weights have drifted apart.
            ExchangeError: a rank did not answer.
        """
        for state in self.exchanged():
            state.commit()
        self.observers.committed()
        self.policy.commit()
        self.nonfinite.clear()
        self.unapplied = False
        self.step += 1
        self.clipping.end_step()
        self._weights_check.end_round(self.number, self.step, equal=not self.uneven)

    def skip(self) -> None:
        """A step is begun anew, or was skipped: roll back, and count the round if there was one.

        Raises:
            RankMismatch, ExchangeError: see `commit`.
        """
        exchanged = self.unapplied
        self.rollback()
        if exchanged:
            self._weights_check.end_round(self.number, self.step, equal=not self.uneven)

    def rollback(self) -> None:
        """Give every parameter of a step that was never applied its residual back, bit for bit."""
        for state in self.states.values():
            state.rollback()
        self.policy.rollback()
        self.unapplied = False
        self.nonfinite.clear()
        self.clipping.discard()
        self.clipping_watch.clear()
        self.observers.rolled_back()

    def before_update(self) -> None:
        """The optimizer is about to apply the sums: raise if it must not, and hold what is frozen.

        Raises:
            NonFiniteGradient: on all ranks.
        """
        if self.settings.nonfinite == "raise":
            self.nonfinite.raise_if_any(self.messages)
        for state in self.states.values():
            if state.held:
                state.parameter.grad = None  # so that neither momentum nor weight decay moves it
        self.clipping_watch.before_update(self.messages.rank)

    def waiting(self) -> dict[str, float]:
        """Return the L2 norms of what waits in the residuals of frozen parameters, by name."""
        return {
            state.name: state.compressor.waiting()
            for state in self.states.values()
            if state.frozen and state.compressor is not None
        }

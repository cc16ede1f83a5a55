"""What ranks agree on: equal settings before the first exchange, the coordinator's plan after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from gradsieve import Steering
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings_check import settings_of
from gradsieve_hvd.engine.statistics import StepStatistics

if TYPE_CHECKING:
    from gradsieve_hvd.control.plan import Plan
    from gradsieve_hvd.control.plan_exchange import PlanExchange, Standing
    from gradsieve_hvd.control.reporter_clock import StepTimes
    from gradsieve_hvd.engine.pace import Progress


class Agreement:
    """Compares one optimizer's settings, again when ranks meet again, and follows the plan.

    Args:
        reducer: of the optimizer.
        compared: what else must be equal on all ranks, JSON-able.
        compresses: whether some gradients are meant to be compressed.
        steering: has the densities of the job's coordinator followed; None if this optimizer does not serve
            all ranks of a job that has one.

    other_steps: that were taken without exchanging gradients. modes: returns the present mode and then the
    others that this rank can change to; nothing if it cannot change. share: returns its part of a batch, in
    equal parts, and the seconds that this takes it to compute.
    """

    def __init__(
        self, reducer: Reducer, compared: dict[str, Any], *, compresses: bool, steering: Steering | None
    ) -> None:
        self._reducer, self._compared, self._compresses = reducer, compared, compresses
        self._steering = steering
        self._control: PlanExchange | None = None
        self.other_steps = 0
        self.modes: Callable[[], Sequence[str]] = tuple
        self.share: Callable[[], tuple[float, float]] = _whole

    @property
    def steps(self) -> int:
        """Optimizer steps so far, of all kinds; the same on all ranks."""
        return self._reducer.step + self.other_steps

    @property
    def plan(self) -> Plan | None:
        """The plan that all ranks follow; None where nobody has one."""
        return None if self._control is None else self._control.plan

    def compare(self, passes: int, order: Sequence[str]) -> None:
        """Compare settings, and join the exchange of plans; all ranks call it before their first exchange.

        passes: backward passes before a gradient is ready. order: parameters' names, by which buckets are
            filled.

        Raises:
            RankMismatch: the ranks' settings differ.
        """
        reducer = self._reducer
        mine = settings_of(
            reducer.settings,
            list(reducer.named_parameters()),
            order,
            **self._compared,
            backward_passes_per_step=passes,
            coordinator=self._steering is not None,
        )
        number = reducer.compare(mine, compresses=self._compresses)
        if self._control is not None:
            reducer.observers.remove(self._control.clock)
        if self._steering is not None:
            from gradsieve_hvd.control.plan_exchange import join

            self._control = join(f"own.{number}", reducer.messages, self._steering, self._standing)
            reducer.observers.add(self._control.clock)

    def _standing(self) -> Standing:
        from gradsieve_hvd.control.plan_exchange import Standing

        return Standing(self.modes(), *self.share())

    @property
    def newest_generation(self) -> int:
        """On rank 0, of the newest plan that all ranks can follow, of which others may not have heard; else
        of the one that all follow; 0 without one.
        """
        return 0 if self._control is None else self._control.newest_generation

    def at_once(self, step: int, modes: Collection[str] | None = None) -> None:
        """Have ranks that step at their own pace hear of the newest plan; all of them call it together.

        modes: those that can be changed to here; None for all.
        """
        if self._control is not None:
            self._control.at_once(step, modes)

    def report_own(self, times: StepTimes) -> None:
        """On every such rank, tell what its own steps have taken since it last did."""
        if self._control is not None:
            self._control.report_own(times)

    def report(self, step: int, done: Progress) -> None:
        """On rank 0, report what they have done since the last report."""
        if self._control is not None:
            self._control.report(step, done)

    def after_step(self) -> None:
        """A step was taken: report it, and follow the newest plan."""
        if self._control is not None:
            self._control.after_step(self.steps, self._reducer.counter.last)

    def after_round(self, sent: StepStatistics, steps: int, waited: float) -> None:
        """A round of local steps has ended: report it, and follow the newest plan; see `PlanExchange`."""
        self.other_steps += steps
        if self._control is not None:
            self._control.after_round(self.steps, sent, steps, waited)


def _whole() -> tuple[float, float]:
    return 1.0, 0.0

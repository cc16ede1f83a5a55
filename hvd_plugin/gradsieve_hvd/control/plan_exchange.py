"""The one small message that the ranks exchange every few seconds: their step times, and rank 0's plan."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradsieve.policies import Steering
from gradsieve_hvd.control.cpu_throttling import CpuThrottling
from gradsieve_hvd.control.link_probe import LinkProbe
from gradsieve_hvd.control.own_samples import own_sample, tell_agent
from gradsieve_hvd.control.plan import NO_PLAN, Plan
from gradsieve_hvd.control.reporter import SECONDS, Reporter, process_reporter
from gradsieve_hvd.control.reporter_clock import StepClock, StepTimes
from gradsieve_hvd.control.telemetry_sample import common_modes, telemetry_sample
from gradsieve_hvd.engine.statistics import StepStatistics
from gradsieve_hvd.transport.messages import Messages, Replies

if TYPE_CHECKING:
    from gradsieve_hvd.engine.pace import Progress

_MOST_STEPS = 200


class Standing(NamedTuple):
    """Where a rank stands.

    modes: the present one and then the others that it can change to now; empty if it cannot change.
    share: its part of a batch, in equal parts. computing: seconds of a step that a larger share would make
        longer.
    """

    modes: Sequence[str] = ()
    share: float = 1.0
    computing: float = 0.0


def join(
    name: str, messages: Messages, steering: Steering, standing: Callable[[], Standing] = Standing
) -> PlanExchange:
    """Return a rank's part in the exchange of an optimizer that serves all ranks of the job.

    standing: returns where this rank stands now.

    Raises:
        ConfigurationError: rank 0's environment names no usable coordinator.
    """
    reporter = process_reporter() if messages.rank == 0 else None
    return PlanExchange(name, messages, steering, reporter, standing)


def steps_to_next(step_seconds: float, last: int) -> int:
    """Return after how many steps a message follows one that came ``last`` steps after its predecessor.

    About two seconds' worth of steps of ``step_seconds``, but at most twice as many as ``last``: a mean over
    few steps says little of those to come. A first step of 14 ms, before the loop's own work begins, would
    put the next message 140 steps off, which are minutes where a step takes a second.
    """
    return min(max(round(SECONDS / step_seconds), 2), 2 * last, _MOST_STEPS)


class PlanExchange:
    """One optimizer's part in it, on every rank.

    1. The first message starts after the first step. It travels with the gradients of the next one, so that
       nobody waits for it, and is read after that step, by all ranks alike.
    2. Rank 0's part holds its newest plan, which all ranks follow from then on, and after how many steps the
       next message starts (`steps_to_next`).
    3. All parts hold step times, of which rank 0 makes a telemetry sample, and the modes that a rank can
       change to. A plan with another mode is not followed in any of its parts, nor acknowledged. What is
       told of the rank itself goes to its host's agent, when its part is made.
    4. When rank 0 asks for it, all ranks probe the link where they read a message; see `LinkProbe`.
    5. Ranks that step at their own pace meet for it when rank 0 has a newer plan (`at_once`); in between each
       tells its agent of itself, and rank 0 reports what it sees of all.

    name: tells several optimizers' messages apart. steering: is given the plan to follow. reporter: on rank 0
    only. standing: as of `join`. plan: in force; who can change modes follows its mode.
    """

    def __init__(
        self,
        name: str,
        messages: Messages,
        steering: Steering,
        reporter: Reporter | None,
        standing: Callable[[], Standing] = Standing,
    ) -> None:
        self.clock, self._throttling = StepClock(), CpuThrottling()
        self._link = LinkProbe(messages.size)
        self.plan: Plan = NO_PLAN
        self._steering = steering
        steering.plan = NO_PLAN.densities  # as on ranks that are new
        self._name = f"control.{name}"
        self._messages = messages
        self._reporter, self._standing = reporter, standing
        self._refused = 0  # the last plan that was
        self._steps_left = self._interval = 1  # until the next message starts; the same on all ranks
        self._rounds = 0  # since the last message; with local steps fewer than steps
        self._under_way: Replies | None = None
        self._measured, self._sent = 0, StepStatistics()  # the step after which its parts were made
        self._met: list[dict[str, Any]] = []  # all parts of the last message

    @property
    def newest_generation(self) -> int:
        """On rank 0, of the newest plan that was not refused, of which others may not have heard; on others
        of the one in force.
        """
        newest = 0 if self._reporter is None else self._reporter.plan.generation
        return self.plan.generation if newest <= self._refused else max(newest, self.plan.generation)

    def at_once(self, step: int, modes: Collection[str] | None = None) -> None:
        """Exchange plans now; all ranks call it together, and none has a step under way.

        modes: those that can be changed to here: a plan with another one is left for later; None for all.

        Raises:
            ExchangeError: a rank did not answer.
        """
        if self._under_way is not None:
            self._under_way.wait()  # of steps of another mode, perhaps
        part = self._part(StepStatistics(), self.clock.read())
        self._under_way = self._messages.tell(json.dumps(part).encode(), self._name)
        parts = [json.loads(part) for part in self._under_way.wait()]
        self._under_way, self._steps_left, self._interval = None, 1, 1
        new = Plan.read(parts[0]["plan"])
        if modes is None or new.mode is None or new.mode in modes:
            self._read_plan(step, parts)
        self._met = parts

    def report_own(self, times: StepTimes) -> None:
        """Tell of this rank's own steps, which are at its own pace."""
        self._tell_agent(times, None)

    def report(self, step: int, done: Progress) -> None:
        """On rank 0, report what ranks have done that step at their own pace."""
        if self._reporter is None or len(self._met) != len(done.work):
            return
        self._reporter.step = step
        parts = [
            {
                **part,
                "seconds": work + wait,
                "wait": wait,
                "select": 0.0,
                "received": 0,
                "bytes": done.wire_bytes,
                "dense": done.gradient_bytes,
                "density": done.density,
            }
            for part, work, wait in zip(self._met, done.work, done.waits, strict=True)
        ]
        times = {"stepSeconds": done.step_seconds, "waitSeconds": done.wait_seconds}
        self._reporter.sample = self._sample(step, None, StepStatistics(), parts) | times

    def after_step(self, step: int, sent: StepStatistics) -> None:
        """Take part after ``step`` steps, the last of which sent what ``sent`` says.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self.clock.step_taken()
        self._take_part(step, sent)

    def after_round(self, step: int, sent: StepStatistics, steps: int, waited: float) -> None:
        """Take part after a round of so many local steps, ``waited`` seconds of it for others; ``sent`` tells
        of one step's share.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self.clock.round_taken(steps, waited)
        self._take_part(step, sent)

    def _take_part(self, step: int, sent: StepStatistics) -> None:
        self._rounds += 1
        if self._reporter is not None:
            self._reporter.step = step
        if self._under_way is not None:
            parts = [json.loads(part) for part in self._under_way.wait()]
            self._under_way = None
            self._read(step, parts)
        self._steps_left -= 1
        if self._steps_left <= 0:
            times = self.clock.read()
            self._tell_agent(times, step)
            self._measured, self._sent = step, sent
            part = json.dumps(self._part(sent, times)).encode()
            self._under_way = self._messages.tell(part, self._name)

    def _tell_agent(self, times: StepTimes, step: int | None) -> None:
        standing = self._standing()
        sample = own_sample(times, standing.share, standing.computing, self._throttling.read())
        tell_agent(self._messages.rank, self.plan.generation, step, sample)

    def _part(self, sent: StepStatistics, times: StepTimes) -> dict[str, Any]:
        rounds, self._rounds = self._rounds, 0
        part = {
            "seconds": times.seconds,
            "wait": times.wait_seconds,
            "select": times.select_seconds,
            "bytes": sent.payload_bytes + sent.dense_bytes,
            "received": sent.received_bytes,
            "dense": sent.gradient_bytes,
            "density": sent.density,
            "modes": list(self._standing().modes),
        }
        if self._reporter is not None:
            steps = steps_to_next(times.seconds * times.steps / max(rounds, 1), self._interval)
            part |= {"plan": dict(self._reporter.plan.fields), "next": steps, "probe": self._link.due()}
        return part

    def _read(self, step: int, parts: list[dict[str, Any]]) -> None:
        self._steps_left = self._interval = parts[0]["next"]
        if self._reporter is not None:
            self._reporter.sample = self._sample(step, self._measured, self._sent, parts)
        self._read_plan(step, parts)
        self._met = parts
        if parts[0]["probe"]:
            self._probe(parts[0]["probe"])

    def _probe(self, size: int) -> None:
        """Time the link; all ranks do, at the same step, with nothing else under way."""
        self._tell(b"")  # so that they begin together
        empty, seconds = self._tell(b""), self._tell(bytes(size))
        self._link.take(size, empty, seconds)

    def _tell(self, content: bytes) -> float:
        began = time.monotonic()
        self._messages.tell(content, f"{self._name}.probe").wait()
        return time.monotonic() - began

    def _sample(
        self, step: int, measured: int | None, sent: StepStatistics, parts: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        assert self._reporter is not None, "on rank 0"
        committed = self._reporter.committed_step
        return telemetry_sample(step, measured, sent, parts, self.plan.generation, self._link, committed)

    def _read_plan(self, step: int, parts: list[dict[str, Any]]) -> None:
        new = Plan.read(parts[0]["plan"])
        if new.generation <= max(self.plan.generation, self._refused):
            return
        modes = common_modes(parts)
        if new.mode is not None and new.mode not in modes:
            self._refused = new.generation
            if self._reporter is not None:
                can = f"only to {', '.join(modes)}" if modes else "not while it runs"
                _say(
                    f"{new} is refused and {self.plan} stays in force: the program can change its mode {can}"
                )
            return
        self.plan = new
        self._steering.plan = new.densities
        _say(f"rank {self._messages.rank}: {new} from step {step} on")


def _say(message: str) -> None:
    print(f"gradsieve: {message}", file=sys.stderr, flush=True)

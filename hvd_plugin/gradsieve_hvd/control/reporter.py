"""Rank 0's thread that talks to the coordinator while the training goes on: telemetry to it, plans back."""

from __future__ import annotations

import atexit
import functools
import http.client
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control import contract
from gradsieve_hvd.control.plan import NO_PLAN, Plan
from gradsieve_hvd.control.reported import reported_loss
from gradsieve_hvd.control.reporter_connection import Coordinator, CoordinatorRefused

SECONDS = 2.0
"""From one call to the next."""

_LAST_SECONDS = 2.0
"""How long a process that ends waits at most for its last call; the coordinator may be gone."""


@functools.cache
def process_reporter() -> Reporter:
    """The one reporter of this process, which must have a coordinator; its thread ends with the process.

    Raises:
        ConfigurationError: the environment names no usable address or certificates.
    """
    coordinator = Coordinator(os.environ[contract.COORDINATOR], Path(os.environ[contract.TLS_DIRECTORY]))
    reporter = Reporter(coordinator)
    thread = threading.Thread(target=reporter.run, name="gradsieve-reporter", daemon=True)
    thread.start()

    def end() -> None:
        reporter.ended.set()
        thread.join(_LAST_SECONDS)

    atexit.register(end)
    return reporter


class Reporter:
    """Hands over the newest sample and fetches the plan, every two seconds.

    The training puts ``sample`` and reads ``plan``, and never waits: both are replaced whole. What goes wrong
    is said once, on stderr, and tried again: a training needs no coordinator.

    plan: the newest that makes sense. committed_step: newest step of a TrainingState, if there is one. step:
    the last one done, which may be later than the sample's. ended: to be set when the training has ended.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.plan: Plan = NO_PLAN
        self.sample: dict[str, Any] | None = None
        self.committed_step: int | None = None
        self.step = 0
        self.ended = threading.Event()
        self._coordinator = coordinator
        self._reported: dict[str, Any] | None = None
        self._refused_plan: object = None
        self._trouble = ""

    def run(self) -> None:
        """Call the coordinator until the training has ended, and once more then."""
        while not self.ended.is_set():
            self.call()
            self.ended.wait(SECONDS)
        self._take_last_step()
        self.call()

    def call(self) -> None:
        """Hand over the sample if it is new, and fetch the plan."""
        try:
            self._take(self._coordinator.plan())
            if self.sample is not self._reported:
                sample = self.sample
                self._coordinator.report(sample or {})
                self._reported = sample
        except CoordinatorRefused as error:
            self._say_once(f"the coordinator refuses a call, and the training goes on: {error}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._say_once(
                f"the coordinator at {self._coordinator.address} does not answer; the training goes on under "
                f"{self.plan} ({type(error).__name__}: {error})"
            )
        else:
            if self._trouble:
                _say("the coordinator answers again")
            self._trouble = ""

    def _take_last_step(self) -> None:
        if self.sample is None or self.sample["step"] >= self.step:
            return
        self.sample = {**self.sample, "step": self.step, "time": time.time()}
        if self.committed_step is not None:
            self.sample["committedStep"] = self.committed_step
        self.sample.pop("loss", None)
        if (loss := reported_loss()) is not None:
            self.sample["loss"] = loss

    def _take(self, content: object) -> None:
        try:
            plan = Plan.read(content)
        except ConfigurationError as error:
            if content != self._refused_plan:
                _say(f"the coordinator's plan is refused and {self.plan} stays in force: {error}")
            self._refused_plan = content
            return
        if plan.generation > self.plan.generation:
            self.plan = plan

    def _say_once(self, trouble: str) -> None:
        kind = trouble.partition("(")[0]
        if kind != self._trouble:
            _say(trouble)
        self._trouble = kind


def _say(message: str) -> None:
    print(f"gradsieve: {message}", file=sys.stderr, flush=True)

"""Live progress of a demo job: follows the events that rank 0 writes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .results import Row

_POLL_SECONDS = 0.25
_PLAIN_SECONDS = 10.0  # where the output is no terminal: a line now and then


class Progress:
    """Context manager: shows one line per training while the job runs in the main thread."""

    def __init__(self, console: Console, events: Path, runs: int) -> None:
        self._console, self._events, self._runs = console, events, runs
        self._done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def rows(self) -> list[Row]:
        """The finished trainings."""
        return [_without_kind(event) for event in self._read() if event["kind"] == "row"]

    def _read(self) -> list[dict[str, Any]]:
        complete, _, _ = self._events.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in complete.splitlines()]

    def _follow(self) -> None:
        seen = 0
        line = Text("starting the ranks", style="dim")
        printed = time.monotonic()
        with Live(line, console=self._console, transient=True, refresh_per_second=4) as live:
            stopping = False
            while not stopping:
                stopping = self._stop.wait(_POLL_SECONDS)
                events = self._read()
                for event in events[seen:]:
                    line = self._show(event)
                    overdue = not self._console.is_terminal and time.monotonic() - printed > _PLAIN_SECONDS
                    if event["kind"] != "progress" or overdue:
                        printed = time.monotonic()
                        self._console.print(line)
                seen = len(events)
                live.update(line)

    def _show(self, event: dict[str, Any]) -> Text:
        if event["kind"] == "compute":
            return Text(
                f"computing alone, before Horovod starts: {1e3 * event['before_horovod']:.0f} ms per step",
                style="dim",
            )
        what = f"[{self._done + 1}/{self._runs}] {event['task']:7} {event['method']:10} seed {event['seed']}"
        size = f"{event['payload_bytes_per_step'] / 1e3:,.1f} kB per step"
        if event["kind"] == "progress":
            return Text(
                f"{what}  epoch {event['epoch']}, step {event['step']}/{event['steps']}, loss "
                f"{event['loss']:.3f}, {size}"
            )
        self._done += 1
        metric = (
            f"accuracy {100 * event['accuracy']:.1f} %"
            if "accuracy" in event
            else f"loss {event['loss']:.3f}"
        )
        return Text(f"{what}  {metric}, {1e3 * event['step_seconds']:.0f} ms per step, {size}", style="green")


def _without_kind(event: dict[str, Any]) -> Row:
    return {key: value for key, value in event.items() if key != "kind"}

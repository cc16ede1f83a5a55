"""Show how far the build is: a live bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

_LINE_SECONDS = 15.0


class BuildProgress(Protocol):
    """What the build tells of itself."""

    def phase(self, title: str) -> None:
        """Begin a phase; its share done is unknown until `percent` is called."""

    def percent(self, done: int) -> None:
        """Say how much of the phase is done, 0 to 100."""

    def tick(self) -> None:
        """Show that time passes."""


class LineProgress:
    """A line at the start of each phase and every 15 seconds within it: for logs and pipes."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._begin = self._last = clock()
        self._title = ""
        self._done: int | None = None

    def phase(self, title: str) -> None:
        """Begin a phase and write its line."""
        self._title, self._done = title, None
        self._show()

    def percent(self, done: int) -> None:
        """Remember the share; the next line shows it."""
        self._done = done

    def tick(self) -> None:
        """Write a line when the last one is 15 seconds old."""
        if self._clock() - self._last >= _LINE_SECONDS:
            self._show()

    def _show(self) -> None:
        self._last = self._clock()
        share = "" if self._done is None else f" {self._done} %"
        self._write(f"build-horovod: {self._title}{share} ({self._last - self._begin:.0f} s)")


class BarProgress:
    """A live line with bar, percentage and elapsed time: for terminals."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def phase(self, title: str) -> None:
        """Begin a phase with an indefinite bar."""
        self._bar.update(self._task, description=title, total=None, completed=0)

    def percent(self, done: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, total=100, completed=done)

    def tick(self) -> None:
        """Redraw; the elapsed time moves even when nothing else does."""
        self._bar.refresh()


@contextmanager
def shown_on(console: Console) -> Iterator[BuildProgress]:
    """Yield the progress that fits `console`, and clean the line up at the end."""
    if not console.is_terminal:
        yield LineProgress(lambda line: console.print(line, highlight=False, soft_wrap=True))
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        yield BarProgress(bar)

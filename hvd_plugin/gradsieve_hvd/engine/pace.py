"""How fast ranks step that each go at their own pace, as rank 0 sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """What was done up to a time (seconds of rank 0's monotonic clock).

    pushes, computing: of each rank, and the seconds that it has spent on them. own_steps, own_bytes: of rank
    0, and what it has sent and got for them. density: of its last push, in (0, 1]. gradient_bytes: of one
    gradient as fp32.
    """

    time: float
    pushes: tuple[int, ...]
    computing: tuple[float, ...]
    own_steps: int
    own_bytes: int
    density: float
    gradient_bytes: int

    def since(self, before: Pace) -> Progress | None:
        """Return what has been done since; None as long as a rank has not pushed once."""
        pushes = [new - old for new, old in zip(self.pushes, before.pushes, strict=True)]
        seconds = self.time - before.time
        if seconds <= 0 or not all(pushes) or self.own_steps == before.own_steps:
            return None
        computing = [new - old for new, old in zip(self.computing, before.computing, strict=True)]
        step = seconds * len(pushes) / sum(pushes)
        turns = [(seconds / count, spent / count) for count, spent in zip(pushes, computing, strict=True)]
        # What was pushed since may have been begun before.
        waits = [max(turn - work, 0.0) for turn, work in turns]
        shares = [wait / turn for wait, (turn, _) in zip(waits, turns, strict=True)]
        return Progress(
            step_seconds=step,
            wait_seconds=step * sum(shares) / len(shares),
            work=tuple(work for _, work in turns),
            waits=tuple(waits),
            wire_bytes=round((self.own_bytes - before.own_bytes) / (self.own_steps - before.own_steps)),
            gradient_bytes=self.gradient_bytes,
            density=self.density,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What steps took for some time.

    step_seconds: for as many pushes as there are ranks. wait_seconds: of it, waiting, the ranks' mean. work,
    waits: seconds of each rank's own steps. wire_bytes: of one of rank 0's steps. Others: see `Pace`.
    """

    step_seconds: float
    wait_seconds: float
    work: tuple[float, ...]
    waits: tuple[float, ...]
    wire_bytes: int
    gradient_bytes: int
    density: float

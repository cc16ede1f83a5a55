"""What was chosen and why, in figures and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_MILLI, _BITS, _MEGA = 1e3, 8, 1e6


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of the path that an optimizer's compressed gradients take; as rank 0 knows it, which chooses.

    path: in use. epoch: how often it has changed. rounds: of gradients that were exchanged so far. before:
    the path that was left for it; empty if none was. trying: whether it is in use to be measured. tried:
    whether the one before was. predicted: seconds of a step by path, by the model. expected: the same with
    what steps took beyond it.
    measured_seconds: of a step by this path, without waiting for the last rank's gradients; None if not
    known. compute_seconds: of them, neither selecting, encoding nor waiting. start_up_seconds,
    bytes_per_second: of the link. why: the path, if it is not a choice.
    """

    path: str
    epoch: int = 0
    rounds: int = 0
    before: str = ""
    trying: bool = False
    tried: bool = False
    predicted: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)
    measured_seconds: float | None = None
    compute_seconds: float | None = None
    start_up_seconds: float | None = None
    bytes_per_second: float | None = None
    why: str = ""

    def changed_to(self, path: str, epoch: int, *, trying: bool) -> Explanation:
        """Return that of a change away from this one's path."""
        return replace(self, before=self.path, path=path, epoch=epoch, trying=trying, tried=self.trying)

    @property
    def line(self) -> str:
        """It in one line, for a log."""
        if self.why:
            return f"compressed gradients travel by '{self.path}': {self.why}"
        chosen = f"after round {self.rounds} compressed gradients travel by '{self.path}'"
        if self.before:
            reason = "which is expected to be sooner"
            if self.trying:
                reason = "to measure it"
            elif self.tried:
                reason = "to compare both"
            chosen += f" instead of '{self.before}', {reason}"
        elif self.trying:
            chosen += ", to measure it"
        parts = [chosen]
        figures = sorted(self.expected.items(), key=lambda each: each[1])
        if figures:
            shown = ", ".join(
                f"{path} {_MILLI * seconds:.0f} (predicted {_MILLI * self.predicted[path]:.0f})"
                for path, seconds in figures
            )
            parts.append(f"expected ms a step: {shown}")
        if self.measured_seconds is not None:
            by = self.before or self.path
            parts.append(f"measured by '{by}': {_MILLI * self.measured_seconds:.0f}")
        if self.bytes_per_second is not None and self.start_up_seconds is not None:
            parts.append(
                f"link: {_BITS * self.bytes_per_second / _MEGA:.0f} Mbit/s, start-up "
                f"{_MILLI * self.start_up_seconds:.2f} ms"
            )
        return "; ".join(parts)

    def __str__(self) -> str:
        return self.line

"""What the ranks of a job measure, handed to them as a file, and how they hand back rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What both kinds of jobs need.

    link: as in rows. task: its name. density: kept / all. rows: the file to which rank 0 appends a line per
    finished row.
    """

    link: str
    task: str
    density: float
    rows: str

    def save(self, path: Path) -> None:
        """Write it for the ranks."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def append(self, row: Row) -> None:
        """Hand a row back."""
        with Path(self.rows).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def finished(self) -> list[Row]:
        """Return the rows handed back so far."""
        path = Path(self.rows)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan(Plan):
    """Steps of all contenders in turn.

    contenders: their names, several of a kind told apart by "#2". rounds: that are counted; one before them
    is not. steps: of each contender in a round. recorded: how many gradients each rank records, and replays
    instead of computing; 0 to compute.
    """

    contenders: tuple[str, ...]
    rounds: int
    steps: int
    recorded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(Plan):
    """Trainings, one after the other.

    trainings: contender, seed and learning rate (None for the task's own) of each. until: the loss or
    accuracy on held-out data at which one ends. most_steps: at which it ends in any case. evaluate_steps:
    from one evaluation to the next; their time is not counted.
    """

    trainings: tuple[tuple[str, int, float | None], ...]
    until: float
    most_steps: int
    evaluate_steps: int

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

    optimizer: of `optimizers`. contenders: their names, several of a kind told apart by "#2". rounds: that
    are counted; one before them is not. steps: of each contender in a round, or more, as all end with an
    exchange. recorded: how many gradients each rank records, and replays instead of computing; 0 to compute.
    """

    optimizer: str
    contenders: tuple[str, ...]
    rounds: int
    steps: int
    recorded: int


Training = tuple[str, int, float]
"""Contender, seed and learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(Plan):
    """Trainings, one after the other.

    optimizer: of `optimizers`. trainings: what is trained; one that finds out what others are to reach comes
    before them. until: what they are to reach, see `reaching.Target`. found: rows that found it out before.
    most_steps: at which a training ends in any case. evaluate_steps: from one evaluation to the next; their
    time is not counted.
    """

    optimizer: str
    trainings: tuple[Training, ...]
    until: str
    found: tuple[Row, ...]
    most_steps: int
    evaluate_steps: int

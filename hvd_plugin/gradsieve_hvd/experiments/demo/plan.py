"""What one job of the demo runs, handed from the command to its ranks as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training: a method with a seed."""

    method: str
    seed: int
    epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All trainings of one task, which follow one another in the same ranks.

    Attributes:
        compute_steps: steps of computing alone measured before Horovod starts and again before and after each
            training.
        events: file to which rank 0 appends one JSON object per line.
    """

    task: str
    density: float
    runs: tuple[Run, ...]
    compute_steps: int
    events: str

    def save(self, path: Path) -> None:
        """Write it for the ranks."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read what `save` wrote."""
        content = json.loads(path.read_text())
        return cls(**{**content, "runs": tuple(Run(**run) for run in content["runs"])})

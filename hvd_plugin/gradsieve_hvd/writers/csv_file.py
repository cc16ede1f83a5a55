"""Statistics as lines of a file."""

from __future__ import annotations

import csv
from pathlib import Path

from gradsieve_hvd.optimizer.stats import OptimizerStats


class CsvWriter:
    """Writes a line per bucket and one for all of them, which has no bucket's name.

    A file that exists is gone on with. Each line is whole on disk when `write` returns.

    Args:
        file: where to.
    """

    _BUCKET = (
        "bucket",
        "path",
        "elements",
        "kept",
        "density",
        "kept_energy",
        "bucket_bytes",
        "bucket_seconds",
    )

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file)

    def write(self, stats: OptimizerStats) -> None:
        """Add a round."""
        columns = ("step", *stats.figures(), *self._BUCKET)
        new = not self._file.exists() or not self._file.stat().st_size
        with self._file.open("a", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            if new:
                writer.writeheader()
            writer.writerow({"step": stats.step, **stats.figures()})
            for each in stats.buckets:
                energy = "" if each.kept_energy is None else each.kept_energy
                values = (each.name, each.path, each.elements, each.kept, each.density, energy)
                row = dict(zip(self._BUCKET, (*values, each.sent_bytes, each.exchange_seconds), strict=True))
                writer.writerow({"step": stats.step, **row})

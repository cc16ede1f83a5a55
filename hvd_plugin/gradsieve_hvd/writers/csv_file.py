"""Statistics as lines of a file."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.optimizer.stats import OptimizerStats


class CsvWriter:
    """Writes a line per bucket and one for all of them, which has no bucket's name.

    A file that exists is gone on with, without a last line that was cut off. Each line is whole on disk when
    `write` returns.

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
        self._columns: tuple[str, ...] = ()  # of the file, once it was looked at

    def write(self, stats: OptimizerStats) -> None:
        """Add a round.

        Raises:
            ConfigurationError: the file has other columns: it is of something else, or of another version.
        """
        columns = ("step", *stats.figures(), *self._BUCKET)
        if not self._is_new() and self._columns != columns:
            self._go_on_with(columns)
        new, self._columns = self._is_new(), columns
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

    def _is_new(self) -> bool:
        return not self._file.exists() or not self._file.stat().st_size

    def _go_on_with(self, columns: tuple[str, ...]) -> None:
        content = self._file.read_bytes()
        first = content.partition(b"\n")[0].decode(errors="replace").strip()
        if first != ",".join(columns):
            raise ConfigurationError(
                f"{self._file} has other columns than those of this optimizer's statistics: it is of another "
                "mode, of another version, or no such file. Name another one"
            )
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self._file, whole)

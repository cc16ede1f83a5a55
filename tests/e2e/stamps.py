"""Ranks that write down when they begin, that they go on, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from history import Worked

FOLDER = "/journal"
PROGRAM = f"""
import os, sys, time
names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "GRADSIEVE_JOB_GENERATION", "GRADSIEVE_POD_UID")
seconds, status = float(os.environ["SECONDS_TO_WORK"]), int(os.environ["STATUS_TO_END_WITH"])
with open("{FOLDER}/" + "_".join(os.environ[name] for name in names), "a") as file:
    def stamp(word):
        print(time.time(), word, file=file, flush=True)
    stamp("began")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stamp("works")
        time.sleep(0.1)
    stamp(status)
sys.exit(status)
"""


class Stamps:
    """What ranks have written into ``folder`` of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def read(self, owners: Mapping[str, str]) -> Iterator[Worked]:
        """Yield what is new: the first and the last that each rank has written since the last time.

        Args:
            owners: UID of a pod -> UID of its job; what pods that are not among them say is told later.
        """
        for file in sorted(self._folder.iterdir()):
            rank, ranks, generation, pod = file.name.split("_")
            if pod not in owners:
                continue
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                found = opened.read()
            # The last line may be half there.
            whole = found[: found.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            lines = [line.split() for line in whole.decode().splitlines()]
            telling = {number for number, (_, word) in enumerate(lines) if word != "works"}
            for number in sorted(telling | {0, len(lines) - 1} if lines else telling):
                at, word = lines[number]
                yield Worked(
                    float(at),
                    owners[pod],
                    pod,
                    int(rank),
                    int(ranks),
                    int(generation),
                    began=word == "began",
                    status=int(word) if word.isdecimal() else None,
                )

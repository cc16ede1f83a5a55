"""docs/architecture.md walks a gradient through the files that it really goes through, ten at most."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from thread_ranks import ThreadRank, on_thread_ranks
from training import loss_of

ROOT = Path(__file__).parents[2]
OTHER_TRANSPORT = "transport/mpi.py"  # in whose place these ranks, which are threads, have their own


def journey() -> list[str]:
    rows = re.findall(r"^\| (\d+) \| `(\S+)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == [str(1 + each) for each in range(len(rows))]
    return [file for _, file in rows]


def path_of(file: str) -> Path:
    package = "compression" if file.startswith("gradsieve/") else "hvd_plugin/gradsieve_hvd"
    return ROOT / package / file


def step(rank: ThreadRank) -> None:
    loss_of(rank.model, 0, rank.rank).backward()
    rank.optimizer.step()


def files_of_a_step() -> set[str]:
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    try:
        on_thread_ranks(2, step)
    finally:
        threading.setprofile(None)
    return seen


def test_it_names_ten_files_at_most_and_a_step_goes_through_each_of_them() -> None:
    files = journey()
    assert len(files) <= 10
    assert len(set(files)) == len(files)
    assert path_of(OTHER_TRANSPORT).exists()
    named = {str(path_of(file)) for file in files if file != OTHER_TRANSPORT}
    assert named <= files_of_a_step()

"""What ranks tell each other of the commits that they can read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradsieve_hvd.training_state.agreement import Found, Report, Restoration, agree
from gradsieve_hvd.training_state.header import Commit, Unusable
from gradsieve_hvd.training_state.ranks import Answer
from gradsieve_hvd.training_state.store import Folder


def report_of(folder: Folder, unusable: set[Path]) -> Answer:
    """Return the JSON-able report of a folder; files in ``unusable`` count as missing.

    Warns of files without a valid header and adds them to ``unusable``.
    """
    found = []
    for path, header in folder.headers():
        if isinstance(header, Unusable):
            if path not in unusable:
                warnings.warn(f"the commit {path} is skipped: {header}", stacklevel=3)
            unusable.add(path)
        elif path not in unusable and path == folder.path_of(header.commit):
            found.append({"commit": asdict(header.commit), "complete": header.shared.size > 0})
    return {"place": folder.place(), "found": found}


def durable_report(folder: Folder, rank: int, unusable: set[Path]) -> Answer:
    """As `report_of`, of a folder that all ranks may see: each reports its own files only."""
    mine = [item for item in report_of(folder, unusable)["found"] if item["commit"]["rank"] == rank]
    return {"place": f"rank {rank}", "found": mine}


def agree_on(answers: Sequence[Answer], field: str) -> Restoration | None:
    """Return what all ranks' reports in ``field`` lead to; ranks without that field have nothing."""
    if any(answer[field] is None for answer in answers):
        return None
    return agree([_read(answer[field]) for answer in answers])


def _read(report: dict[str, Any]) -> Report:
    found = tuple(Found(Commit(**item["commit"]), item["complete"]) for item in report["found"])
    return Report(report["place"], found)

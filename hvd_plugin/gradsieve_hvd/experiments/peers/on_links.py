"""Seconds to a target on links that are too slow to train on: steps to it, times what one takes there. Pure.

Steps are those of a whole training on a fast link. They are the same on any other for all who compute the
same wherever they run (``auto`` may choose another path); what one takes on a slow link a few of them tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .contenders import base_name
from .plan import Row


def add_links(rows: Sequence[Row], timed: Sequence[Row], batch: int) -> None:
    """Give rows of trainings an ``on_links``: by link, ``step_seconds``, ``seconds_to_target`` (None if it
    was not reached) and ``bytes_per_sample``, of one rank.

    Args:
        rows: trainings.
        timed: rows of ``gradsieve bench exchange``; those of the same ranks, task and optimizer count. A
            contender's second of a kind has its own, or the first's.
        batch: samples of a rank's step.
    """
    for row in rows:
        alike = [
            each for each in timed if all(each[name] == row[name] for name in ("ranks", "task", "optimizer"))
        ]
        row["on_links"] = {
            each["link"]: {
                "step_seconds": each["step_seconds"],
                "seconds_to_target": _product(row["steps_to_target"], each["step_seconds"]),
                "bytes_per_sample": each["wire_bytes"] / batch,
            }
            for name in (base_name(row["contender"]), row["contender"])
            for each in alike
            if each["contender"] == name
        }


def links_known(rows: Iterable[Row]) -> list[str]:
    """Return the links on which it is known what a step of some training takes, in the order of rows."""
    return list(dict.fromkeys(link for row in rows for link in row.get("on_links", {})))


def _product(steps: int | None, seconds: float) -> float | None:
    return None if steps is None else steps * seconds

"""What ``gradsieve top JOB`` shows of the job's ranks, from its coordinator's status: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.client.job_rows import NOTHING
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.values import MAX_SLOTS, MAX_WORKERS

HEADER = ("HOST", "RANK", "WORK", "WAIT", "THROTTLED", "CONNECTED")
_MOST_HOSTS = 4 * MAX_WORKERS
_MOST_RANKS = MAX_WORKERS * MAX_SLOTS
_MILLI = 1000
_LONGEST, _LARGEST_LOSS = 1e9, 1e18


@dataclass(frozen=True)
class RankRow:
    """One rank, or a host without any.

    Attributes:
        cells: its texts, in the order of `HEADER`.
        needs_attention: whether its host is gone.
    """

    cells: tuple[str, ...]
    needs_attention: bool


def rank_rows(status: Mapping[str, Any]) -> list[RankRow]:
    """Return the ranks of the last sample, those whose own work takes longest first, then other hosts.

    Args:
        status: what the coordinator answers; its image is the user's, so that anything may be in it.

    Raises:
        SpecError: a field is not as it must be.
    """
    fields = Fields(status, "status")
    hosts = {
        _text(each, "host"): each.flag("connected", default=False)
        for each in _objects(fields, "registered", _MOST_HOSTS)
    }
    ranks = _objects(fields.object("telemetry"), "ranks", _MOST_RANKS)
    ranks.sort(key=lambda rank: -_seconds(rank, "stepSeconds"))
    found = [_rank_row(rank, connected=hosts.get(_text(rank, "host"), False)) for rank in ranks]
    shown = {row.cells[0] for row in found}
    return found + [
        RankRow((host, *[NOTHING] * (len(HEADER) - 2), _yes_or_no(connected)), not connected)
        for host, connected in sorted(hosts.items())
        if host not in shown
    ]


def loss(status: Mapping[str, Any]) -> str:
    """Return the loss that the program has reported last, if it reports one; ``status`` as for `rank_rows`.

    Raises:
        SpecError: it is no number.
    """
    telemetry = Fields(status, "status").object("telemetry")
    found = telemetry.values.get("loss")
    if found is None:
        return NOTHING
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if not number or not -_LARGEST_LOSS <= found <= _LARGEST_LOSS:
        raise telemetry.error("loss", f"must be a number, at most {_LARGEST_LOSS:g}")
    return f"{found:.6g}"


def _rank_row(rank: Fields, *, connected: bool) -> RankRow:
    number = rank.number_or("rank", 0, 0, _MOST_RANKS)
    times = (f"{_seconds(rank, name) * _MILLI:.0f}ms" for name in ("stepSeconds", "waitSeconds"))
    cells = (_text(rank, "host"), str(number), *times, _throttled(rank), _yes_or_no(connected))
    return RankRow(cells, not connected)


def _throttled(rank: Fields) -> str:
    """Return in how much of the time the container's CPU limit was used up, if it has one."""
    found = rank.values.get("throttledShare")
    if found is None:
        return NOTHING
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1:
        raise rank.error("throttledShare", "must be a number from 0 to 1")
    return f"{found:.0%}"


def _objects(fields: Fields, name: str, most: int) -> list[Fields]:
    return [Fields.of(each, fields.at(name)) for each in fields.items(name, most)]


def _seconds(fields: Fields, name: str) -> float:
    found = fields.values.get(name, 0)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= _LONGEST:
        raise fields.error(name, f"must be a number of seconds, at most {_LONGEST:g}")
    return found


def _text(fields: Fields, name: str) -> str:
    """Return a word in one line and without a blank in it, so that scripts can count columns."""
    return "".join(one_line(fields.values.get(name) or NOTHING).split())


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"

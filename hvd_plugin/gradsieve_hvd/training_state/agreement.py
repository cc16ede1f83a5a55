"""Which commit the ranks go on from, and who reads which file: decided by every rank alike, from the same
reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradsieve_hvd.training_state.header import Commit


@dataclass(frozen=True, slots=True)
class Found:
    """A commit file that somebody can read. ``complete``: it holds the shared part, too."""

    commit: Commit
    complete: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank can read. Ranks that name the same ``place`` see the same files."""

    place: str
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Restoration:
    """What to go on from.

    takes: per rank, the file it reads; None: it has none and starts without a residual.
    complete: ranks whose file is, in ascending order; the others get the shared part from the first of them.
    """

    step: int
    takes: tuple[Commit | None, ...]
    complete: tuple[int, ...]

    @property
    def source(self) -> int:
        """The rank that sends the shared part."""
        return self.complete[0]

    @property
    def held_by(self) -> int:
        """How many ranks read a file."""
        return sum(take is not None for take in self.takes)


def agree(reports: Sequence[Report]) -> Restoration | None:
    """Return what all ranks go on from, given their reports in the order of ranks; None: there is nothing.

    1. Every commit (step and run) that anybody reports is a candidate.
    2. Hand out its files: see `_hand_out`. Somebody must read a complete one: see `_first_complete`.
    3. Take the candidate that most ranks have a file of; of several the newest. Ranks that have no file at
       all (they were replaced) count for none, so this is the newest that all survivors have in common.
    """
    candidates = {(f.commit.step, f.commit.run) for report in reports for f in report.found}
    possible = [choice for step, run in candidates if (choice := _restoration(reports, step, run))]
    newest_first = sorted(possible, key=lambda choice: (choice.held_by, choice.step, str(choice.takes)))
    return newest_first[-1] if newest_first else None


def newer(first: Restoration | None, second: Restoration | None) -> Restoration | None:
    """Return the one of the later step; ``first`` if they are of the same."""
    if first is None or second is None:
        return first or second
    return second if second.step > first.step else first


def _restoration(reports: Sequence[Report], step: int, run: int) -> Restoration | None:
    chosen = [
        Report(report.place, tuple(f for f in report.found if (f.commit.step, f.commit.run) == (step, run)))
        for report in reports
    ]
    taken = dict(_hand_out(chosen))
    if not any(found.complete for found in taken.values()):
        for rank, found in _first_complete(chosen):
            file = chosen[rank].place, found.commit
            taken = {other: f for other, f in taken.items() if (chosen[other].place, f.commit) != file}
            taken[rank] = found
    complete = tuple(sorted(rank for rank, found in taken.items() if found.complete))
    if not complete:
        return None
    takes = tuple(taken[rank].commit if rank in taken else None for rank in range(len(reports)))
    return Restoration(step, takes, complete)


def _first_complete(reports: Sequence[Report]) -> Iterator[tuple[int, Found]]:
    """Yield the first rank that can read a complete file, and that file, if there is one.

    For ranks that are fewer than before: all have files of their own, and none of these is complete. What the
    rank takes it instead of is a residual; without a complete file all would be lost.
    """
    for rank, report in enumerate(reports):
        for found in report.found:
            if found.complete:
                yield rank, found
                return


def _hand_out(reports: Sequence[Report]) -> Iterator[tuple[int, Found]]:
    """Yield rank and file; no file twice, because its residual is a debt that must be paid once.

    1. A rank takes what it wrote itself under this number.
    2. Then ranks without a file take, in order, those of their place that nobody took: hosts can change
       their order from one generation to the next, and a residual need not be paid by the same rank number.

    A rank takes only what it has reported itself: others of its place may not know that it cannot read it.
    """
    taken: set[tuple[str, Commit]] = set()
    without = []
    for rank, report in enumerate(reports):
        mine = [found for found in report.found if found.commit.rank == rank]
        if mine:
            taken.add((report.place, mine[0].commit))
            yield rank, mine[0]
        else:
            without.append(rank)
    for rank in without:
        report = reports[rank]
        left = [found for found in report.found if (report.place, found.commit) not in taken]
        if left:
            first = min(left, key=lambda found: found.commit.rank)
            taken.add((report.place, first.commit))
            yield rank, first

"""What a mode is told (events) and what it answers (actions).

Times are seconds on the decision-maker's clock. A *version* counts releases: weights of version v are the
initial ones after v updates.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """All workers are there and wait for the initial weights."""

    now: float


@dataclass(frozen=True, slots=True)
class Pushed:
    """A worker's gradient of one batch has arrived; it waits for an answer.

    number: identifies the push. version: of the weights that the gradient was computed at. samples: in the
    batch. seconds: spent on computing it, without waiting and without the network. share, next_share: of this
    batch and of the one after it, in nominal batches, where they were dealt; None for what the worker's last
    `Reply` said.
    """

    now: float
    number: int
    rank: int
    version: int
    samples: int
    seconds: float
    share: float | None = None
    next_share: float | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A worker has finished early or is lost: it will not push again. What it has pushed counts."""

    now: float
    rank: int


@dataclass(frozen=True, slots=True)
class Rested:
    """A worker has pushed all that it was dealt of its epoch, which is over for it, and has begun no other
    one: it computes nothing until it `Resumed`.
    """

    now: float
    rank: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A worker that rested computes again, with the weights that it has."""

    now: float
    rank: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The time that the last `WakeAt` asked for has come."""

    now: float


Event = Started | Pushed | Left | Rested | Resumed | Woke


@dataclass(frozen=True, slots=True)
class Contribution:
    """A push's part in a release.

    weight: what its gradient is multiplied by. gated: whether entries whose sign opposes the sum of the
    release's contributions that are not gated are dropped (entries which that sum lacks are kept).
    """

    number: int
    weight: float = 1.0
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Make the next version: one step of the optimizer with (1/P) · Σ weight · gradient, P all ranks."""

    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """A push that is never applied; it is counted."""

    number: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Send a waiting worker the newest weights; it computes its next batch with them.

    share: size in nominal batches of what it is dealt from now on: of that batch, unless it has that already.
    extra: iterations that it may begin afterwards without being held to the bound on clock leads (DSSP).
    """

    rank: int
    share: float = 1.0
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Continue:
    """Let a waiting worker compute another batch with the weights that it has."""

    rank: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask again at this time, if nothing happens before; takes the place of an earlier wish."""

    time: float


Action = Release | Discard | Reply | Continue | WakeAt

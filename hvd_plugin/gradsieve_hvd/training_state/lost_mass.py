"""What ranks that are gone still owed the weights: it is lost with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradsieve_hvd.training_state.agreement import Restoration


@dataclass(frozen=True, slots=True)
class LostMass:
    """Residuals that no rank has taken over.

    ranks: whose they were, numbered as when they were committed. norm, of: their L2 norm together, and that
    of all ranks' residuals, in unscaled gradient units, as of the commit before; None if there was none.
    """

    ranks: tuple[int, ...] = ()
    norm: float | None = None
    of: float | None = None

    def __str__(self) -> str:
        """Say it in words."""
        whose = f"the residuals of rank {', '.join(map(str, self.ranks))} are lost"
        if self.norm is None or self.of is None:
            return whose
        return f"{whose}: of L2 norm {self.norm:.4g} at the commit before, where all ranks' had {self.of:.4g}"


NOTHING_LOST = LostMass()


def lost_mass(choice: Restoration, owed: Sequence[float]) -> LostMass:
    """Return what is lost when ranks go on from a commit.

    owed: L2 norms of all ranks' residuals, by rank, at the commit before; empty if there was none.
    """
    taken = [commit for commit in choice.takes if commit is not None]
    size = taken[0].size
    ranks = tuple(sorted(set(range(size)) - {commit.rank for commit in taken}))
    if not ranks or len(owed) != size:
        return LostMass(ranks)
    return LostMass(ranks, math.hypot(*(owed[rank] for rank in ranks)), math.hypot(*owed))

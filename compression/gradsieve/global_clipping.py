"""Clipping by the norm of the whole mean gradient, before any of it is accumulated.

``torch.nn.utils.clip_grad_norm_`` scales the mean gradient of all ranks down to a norm. With error feedback
it comes too late: what arrives is what residuals saved up over many steps, in few entries, so its norm is
that of no gradient, and what clipping takes away returns to nobody's residual. So each rank scales its own
gradient before it is accumulated. The norm that it goes by cannot be that of the same step, since the first
tensors are sent before the last ones are computed. It is the last step's, which the ranks tell each other in
524 bytes. All of this is a reconstruction **(r)**; nothing of it is taken from a paper.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError, PayloadError
from gradsieve.policies import state as saved
from gradsieve.policies.energy import norm

BUCKETS = 127  # a prime, so that a matrix's rows fall into all buckets; the norm's deviation is 6 %
LARGEST_CHANGE = 2.0  # (r) of the norm from step to step
_ROWS = 1 << 14  # of 127 elements: a block of 8 MiB
_OFFSETS = 1 << 12  # beginnings in the list of signs
_MESSAGE = struct.Struct(f"<dd{BUCKETS}f")


@dataclass(frozen=True, slots=True)
class Norms:
    """What the ranks agreed on after a step, in unscaled units; unclipped.

    reduced: norm of the mean (or sum) over the ranks, of all tensors together. spread: the largest of the
    ranks' own norms over that.
    """

    reduced: float
    spread: float


class GlobalClipping:
    """One rank's part of clipping to ``bound``, the largest norm of the reduced gradient of all tensors.

    1. Every gradient of a step is multiplied by one factor, the same on all ranks and for all tensors, dense
       or compressed: min(1, ``bound`` / norm of the last step's reduced gradient) (`factor`). So the mean
       keeps its direction, and a rank with a larger gradient its weight in it, exactly as when the mean is
       clipped. (Deep Gradient Compression, 3.2, clips each rank by its own norm, to bound * N^-1/2. That is
       right for a sum of independent gradients of equal length, and for no other.)
    2. A tensor whose norm would still be above 2 * ``bound`` * (largest norm of a rank / norm of the reduced
       gradient, both of the last step) is scaled down to that: it has exploded in this very step.
    3. In the first step there is no factor: no tensor may have a norm above ``bound`` * the root of its share
       of all elements, so that the whole of it is at most ``bound``.
    4. At the end of the step each rank tells the others the square of its norm and a sketch of its gradient
       (`close_step`). Sketches are linear: the mean of sketches is the sketch of the mean, so its norm is
       found without anybody having the mean (`agree`).
    5. The norm in force is at most twice the last one (or twice ``bound``) and at least half the last one: a
       step after an explosion is not thrown away. A step that is not finite on some rank changes nothing.

    What is clipped away is dropped, as in training without compression: nothing returns to a residual.
    """

    def __init__(self, bound: float, ranks: int, *, averages: bool) -> None:
        self._bound = bound
        self._ranks = ranks
        self._averages = averages
        self._norms: Norms | None = None
        self._begin()

    def factor(self, gradient: Tensor, name: str, share: float, unscale: float = 1.0) -> float:
        """Return what to multiply ``gradient`` with, besides ``unscale``, and remember its norm.

        ``gradient``: any shape, strides and floating-point dtype, not mutated; ``share``: its elements over
        all elements of the step. Costs two passes. A gradient that is not finite gets 1.0, to be refused.
        """
        length = self.measure(gradient, name, unscale)
        if not math.isfinite(length):
            return 1.0
        factor, largest = self._limits(share)
        return min(factor, largest / length) if length else factor

    def measure(self, gradient: Tensor, name: str, unscale: float = 1.0) -> float:
        """Remember the norm of ``gradient`` (any shape, strides and floating-point dtype, not mutated), times
        ``unscale``, and return it. Costs two passes.
        """
        length = _norm(gradient) * abs(unscale)
        if not math.isfinite(length):
            self._squares = math.nan
            return length
        self._squares += length**2
        self._sketch += _sketch(gradient, name).double().cpu().mul_(unscale)
        return length

    def factor_in_force(self) -> float:
        """Return the factor of the norm that the ranks have agreed on, 1.0 if they have not: for ranks that
        agree before they send anything, so that no tensor can explode meanwhile.
        """
        return 1.0 if self._norms is None else self._limits(1.0)[0]

    def _limits(self, share: float) -> tuple[float, float]:
        """Return the factor of the step, and the largest norm that a tensor may have after it."""
        bound = self._bound
        if self._norms is None:
            return 1.0, bound * math.sqrt(share) / (1 if self._averages else self._ranks)
        reduced = max(self._norms.reduced, bound)
        return bound / reduced, LARGEST_CHANGE * bound * self._norms.spread

    def close_step(self) -> bytes:
        """Return what the other ranks need to know of the step, and begin the next one."""
        in_force = -1.0 if self._norms is None else self._norms.reduced
        message = _MESSAGE.pack(self._squares, in_force, *self._sketch.float().tolist())
        self._begin()
        return message

    def discard_step(self) -> None:
        """Forget what was measured."""
        self._begin()

    def agree(self, messages: Sequence[bytes]) -> None:
        """Take over the norms that the ranks' ``messages``, in the order of ranks, amount to.

        Raises:
            PayloadError: a message is not one of `close_step`; nothing was changed.
        """
        if any(len(message) != _MESSAGE.size for message in messages):
            raise PayloadError(
                "a message about gradient norms has a wrong length; is a rank of another version?"
            )
        said = [_MESSAGE.unpack(message) for message in messages]
        longest = math.sqrt(max((each[0] for each in said), key=lambda square: (math.isnan(square), square)))
        sketches = torch.tensor([each[2:] for each in said], dtype=torch.float64, device="cpu")
        reduced = norm(sketches.sum(dim=0)) / (len(said) if self._averages else 1)
        if not (math.isfinite(longest) and math.isfinite(reduced)):
            return
        most_spread = float(len(said)) if self._averages else 1.0  # one rank has all of it
        spread = min(longest / reduced, most_spread) if reduced else most_spread
        before = said[0][1]  # rank 0's rather than this rank's: a rank that is new here has none
        if before >= 0:
            reduced = min(reduced, LARGEST_CHANGE * max(before, self._bound))
            reduced = max(reduced, before / LARGEST_CHANGE)
        self._norms = Norms(reduced, spread)

    def state_dict(self) -> dict[str, Any]:
        """Return the norms in force: two numbers, or None before the first step. The same on all ranks."""
        norms = self._norms
        return {
            "reduced_norm": None if norms is None else norms.reduced,
            "spread": None if norms is None else norms.spread,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over norms; raises ConfigurationError, changing nothing, if these are none."""
        saved.require_fields(state, "reduced_norm", "spread")
        reduced, spread = (saved.number_or_none(state, field) for field in ("reduced_norm", "spread"))
        if (reduced is None) != (spread is None):
            raise ConfigurationError("clipping state: only one of 'reduced_norm' and 'spread' is None")
        self._norms = None if reduced is None or spread is None else Norms(reduced, spread)
        self._begin()

    def _begin(self) -> None:
        self._squares = 0.0
        self._sketch = torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")


def _norm(gradient: Tensor) -> float:
    """Return the Euclidean norm; in fp32, unless that might overflow or lose small numbers."""
    flat = gradient.detach().reshape(-1)
    squares = 0.0
    for start in range(0, flat.numel(), _ROWS * BUCKETS):
        length = float(torch.linalg.vector_norm(flat[start : start + _ROWS * BUCKETS].float()))
        if length and not 1e-15 < length < 1e15:
            return norm(flat)
        squares += length**2
    return math.sqrt(squares)


def _sketch(gradient: Tensor, name: str) -> Tensor:
    """Return a linear sketch of a tensor, fp32 [127]: its squared norm is on average the gradient's.

    Element i goes, with a sign, into bucket i mod 127 (Alon, Matias, Szegedy 1996; Charikar et al. 2002).
    Signs are drawn once, per row of 127 elements; another tensor or block of rows begins elsewhere in them.
    """
    flat = gradient.detach().reshape(-1)
    total = torch.zeros(BUCKETS, dtype=torch.float32, device=flat.device)
    signs = _signs(flat.device)
    for number, start in enumerate(range(0, flat.numel(), _ROWS * BUCKETS)):
        block = flat[start : start + _ROWS * BUCKETS].float()
        key = zlib.crc32(f"{name}.{number}".encode())
        own = signs[key % _OFFSETS :]
        rows, rest = divmod(block.numel(), BUCKETS)
        part = own[:rows] @ block[: rows * BUCKETS].view(rows, BUCKETS)
        part[:rest] += block[rows * BUCKETS :] * own[rows]
        total += part if key & _OFFSETS else -part
    return total


@lru_cache(maxsize=16)
def _signs(device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randint(2, (_ROWS + _OFFSETS + 1,), generator=generator, device="cpu")
    return (2 * drawn - 1).to(device, torch.float32)

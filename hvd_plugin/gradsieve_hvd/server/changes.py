"""Which entries of a tensor have changed since a version, so that only these need to be sent."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST = 0.3  # of the entries: an index and a value cost more than a value, and momentum changes all soon


class Changes:
    """The version at which every entry last changed, as long as versions change few of them.

    A release that changes most entries (momentum, Adam, weight decay; pushes that are not sparse) takes its
    place, and needs no memory; otherwise memory is 4 bytes per entry.
    """

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._all_at = 0  # entries without an own version changed then
        self._last_N: Tensor | None = None

    def note(self, version: int, before: Tensor, after: Tensor) -> None:
        """Compare a tensor (any shape, N elements) before and after a version was made, bit by bit."""
        bits = _BITS[before.element_size()]
        changed_N = before.view(-1).view(bits) != after.view(-1).view(bits)
        if int(changed_N.sum()) > _MOST * self._elements:
            self._all_at, self._last_N = version, None
            return
        if self._last_N is None:
            self._last_N = torch.full((self._elements,), self._all_at, dtype=torch.int32, device="cpu")
        self._last_N[changed_N] = version

    def since(self, version: int) -> Tensor | None:
        """Return the indices (int64, increasing) of the entries that have changed after a version; None if
        they are so many that all may as well be sent.
        """
        if version < self._all_at:
            return None
        if self._last_N is None:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        indices = torch.nonzero(self._last_N > version).view(-1)
        return None if indices.numel() > _MOST * self._elements else indices

"""A tensor that a step may replace, and that is as before if the step fails."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError


class DoubleBuffered:
    """What is committed, and what a step has made of it, [N] each.

    Committing swaps them, so neither commit nor rollback touches an element, and a rollback restores every
    bit.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self._committed = torch.zeros(elements, dtype=dtype, device=device)
        self._pending = torch.empty_like(self._committed)
        self._open = False

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self._committed.dtype

    @property
    def elements(self) -> int:
        """N."""
        return self._committed.numel()

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._committed.device

    def commit(self) -> None:
        """Make the step final; nothing happens when there is none."""
        if self._open:
            self._committed, self._pending = self._pending, self._committed
        self._open = False

    def rollback(self) -> None:
        """Drop the step; nothing happens when there is none."""
        self._open = False

    def _open_unchanged(self) -> None:
        """Begin a step that has changed nothing yet, unless there is one."""
        if not self._open:
            self._pending.copy_(self._committed)
        self._open = True

    def _saved(self, state: dict[str, Any], field: str, advice: str = "") -> Tensor:
        """Return what a saved state holds for these buffers.

        Raises ConfigurationError, changing nothing, if it is not a finite tensor [N] of their dtype.
        """
        saved, like = state.get(field), self._committed
        if not isinstance(saved, Tensor):
            raise ConfigurationError(f"field '{field}': found {type(saved).__name__}, expected a tensor")
        if saved.layout != torch.strided or saved.is_meta:
            raise ConfigurationError(f"field '{field}': found a sparse or meta tensor, expected a dense one")
        if saved.shape != like.shape or saved.dtype != like.dtype:
            raise ConfigurationError(
                f"field '{field}': found {saved.dtype} {list(saved.shape)}, "
                f"expected {like.dtype} {list(like.shape)}{advice}"
            )
        if not bool(torch.isfinite(saved).all()):
            raise ConfigurationError(f"field '{field}': it holds NaN or infinity")
        return saved

    def _replace(self, saved: Tensor) -> None:
        """Commit a copy of ``saved`` and drop a pending step."""
        self.rollback()
        self._committed.copy_(saved)

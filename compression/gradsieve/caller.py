"""Warnings that point at the user's own line, however many of our frames lie in between."""

from __future__ import annotations

import sys
import warnings

_OURS = ("gradsieve", "gradsieve_hvd")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame that is not gradsieve's."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - there is no public way that is as quick
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS

"""Ahead-of-time compilation of loops with numba: at import, from the disk's cache where it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(*signatures: str, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function for exactly these signatures, now, so that no step waits
    for it.

    The first import on a machine takes seconds, the next ones load machine code: from the ``__pycache__``
    beside the source, from the user's cache folder where that is read-only, and where neither can be written
    it is compiled anew in every process. ``inline``: let the caller's loop absorb it. The compiled function
    releases the interpreter's lock and does not check bounds.
    """

    def compile_now(function: _Function) -> _Function:
        options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
        if inline:
            options["forceinline"] = True
        try:
            ready: Any = numba.njit(list(signatures), cache=True, **options)(function)
        except RuntimeError:  # numba's word for "no folder to cache in"
            ready = numba.njit(list(signatures), **options)(function)
        return cast("_Function", ready)

    return compile_now

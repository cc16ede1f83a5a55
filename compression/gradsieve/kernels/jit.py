"""Ahead-of-time compilation of loops with numba: at import, from the disk where it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from gradsieve.kernels.kernel_cache import KernelCache

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(*signatures: str, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function for exactly these signatures, now, so that no step waits
    for it.

    The first import on a machine takes some ten seconds, the next ones load machine code from what a
    container image brings (``GRADSIEVE_KERNELS``) or from the user's cache folder (``NUMBA_CACHE_DIR``, else
    ``gradsieve/numba`` in ``XDG_CACHE_HOME`` or ``~/.cache``). Where nothing can be written, every process
    compiles anew what the image does not bring. ``inline``: let the caller's loop absorb it. The compiled
    function releases the interpreter's lock and does not check bounds.
    """

    def compile_now(function: _Function) -> _Function:
        options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
        if inline:
            options["forceinline"] = True
        ready: Any = numba.njit(**options)(function)
        ready._cache = KernelCache(function)  # noqa: SLF001 - `cache=True` would put numba's own there
        for signature in signatures:
            ready.compile(signature)
        ready.disable_compile()
        return cast("_Function", ready)

    return compile_now

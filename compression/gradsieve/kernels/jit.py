"""Ahead-of-time compilation of loops with numba: at import, from the disk's cache where it has them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import numba

_COMPILED = ("codec", "kernels")  # the folders whose functions are compiled
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(*signatures: str, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function for exactly these signatures, now, so that no step waits
    for it.

    The first import on a machine takes some ten seconds, the next ones load machine code from the user's
    cache folder (``NUMBA_CACHE_DIR``, else ``gradsieve/numba`` in ``XDG_CACHE_HOME`` or ``~/.cache``), which
    begins as a copy of ``GRADSIEVE_KERNELS`` if that names the cache folder of a container image. Where
    nothing can be written, every process compiles anew. ``inline``: let the caller's loop absorb it. The
    compiled function releases the interpreter's lock and does not check bounds.
    """

    def compile_now(function: _Function) -> _Function:
        options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
        if inline:
            options["forceinline"] = True
        try:
            with _own_cache_folder():
                ready: Any = numba.njit(list(signatures), cache=True, **options)(function)
        except RuntimeError:  # numba's word for "no folder to cache in"
            ready = numba.njit(list(signatures), **options)(function)
        return cast("_Function", ready)

    return compile_now


@contextmanager
def _own_cache_folder() -> Iterator[None]:
    """Let numba cache in a folder that belongs to these sources.

    Numba itself forgets a cached function when the file it stands in changes, but not when a function that it
    calls does, nor when an upgrade brings a file of the same size and date, as wheels do.
    """
    config: Any = numba.config
    before = config.CACHE_DIR
    folder = Path(before or _user_cache()) / _digest_of_sources()
    _begin_with_prebuilt(folder)
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _begin_with_prebuilt(folder: Path) -> None:
    """Copy what an image brings for these sources to ``folder``, if that does not exist yet.

    A copy, because numba does not read a cache that it cannot write. It appears by renaming, so that of
    several processes that start at once each sees all of it or none.
    """
    prebuilt = os.environ.get("GRADSIEVE_KERNELS")
    if not prebuilt or folder.exists():
        return
    source = Path(prebuilt) / folder.name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".copy", dir=folder.parent) as scratch:
            copied = shutil.copytree(source, Path(scratch) / folder.name)
            copied.rename(folder)
    except OSError:  # made for other sources, no room, or another process was first: numba does without
        return


def _user_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gradsieve" / "numba"


@cache
def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in _COMPILED:
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

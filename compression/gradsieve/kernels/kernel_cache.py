"""Where the machine code of compiled loops lies on disk, and how it is loaded from there."""

# ruff: noqa: SLF001 - numba's cache is made to be derived from, but names nothing that a derived one needs

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba
from llvmlite import binding as llvm
from numba.core import caching
from numba.core.runtime.nrt import rtsys

_COMPILED = ("codec", "kernels")  # the folders whose functions are compiled


def own_folder() -> Path:
    """Return the folder that new machine code is written to; for a user without a home one that cannot be."""
    config: Any = numba.config
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a number without a name, as containers like to have it
        home = Path(os.devnull)
    return home / "gradsieve" / "numba"


@cache
def digest_of_sources() -> str:
    """Return the name of the folder for just these sources.

    Numba itself forgets a cached function when the file it stands in changes, but not when a function that it
    calls does, nor when an upgrade brings a file of the same size and date, as wheels do.
    """
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in _COMPILED:
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class _Place(caching._CacheLocator):
    """Where one function's files lie: told apart by package, module, name and line."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._inner = Path(digest_of_sources()) / Path(file).parent.name
        self._line = function.__code__.co_firstlineno

    def below(self, folder: Path) -> str:
        return str(folder / self._inner)

    def get_cache_path(self) -> str:
        return self.below(own_folder())

    def get_source_stamp(self) -> str:
        return self._inner.parts[0]

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Place:
        return cls(function, file)


class _Format(caching.CompileResultCacheImpl):
    _locator_classes = [_Place]  # noqa: RUF012 - numba's own


@cache
def _empty_bitcode() -> bytes:
    return cast("bytes", llvm.parse_assembly("").as_bitcode())


def _entries(descriptor: Any) -> tuple[str, str, str]:
    """Return the symbols of a function by which it is called from outside."""
    wrappers = (descriptor.llvm_cpython_wrapper_name, descriptor.llvm_cfunc_wrapper_name)
    return (descriptor.llvm_func_name, *wrappers)


class KernelCache(caching.FunctionCache):
    """What numba asks for a function's machine code before it compiles, and gives it to afterwards.

    It is looked for in what an image brings (``GRADSIEVE_KERNELS``, only read), then in the own folder. The
    names of its methods are numba's.
    """

    _impl_class = _Format

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._sources = [self._cache_file]
        if brought := os.environ.get("GRADSIEVE_KERNELS"):
            place: _Place = self._impl.locator
            self._sources.insert(
                0,
                caching.IndexDataCacheFile(
                    cache_path=place.below(Path(brought)),
                    filename_base=self._impl.filename_base,
                    source_stamp=place.get_source_stamp(),
                ),
            )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature; None if there is nothing, or nothing that can be read.

        Only the part of numba that turns arrays into arguments is made ready. Numba's own version makes the
        compiler ready as well, which imports scipy among others: 0.6 s of every process's start.
        """
        rtsys.initialize(target_context)
        key = self._index_key(sig, target_context.codegen())
        for source in self._sources:
            try:
                if (found := source.load(key)) is not None:
                    return self._rebuilt(target_context, found)
            except Exception:  # noqa: BLE001 - a file that a full disk has cut short can fail in any way
                if source is self._cache_file:
                    self._forget()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if it can be written."""
        with suppress(OSError):
            super().save_overload(sig, data)

    def _rebuilt(self, target_context: Any, found: Any) -> Any:
        """Return what was found, ready to be called; its bitcode is read once another function absorbs it.

        Only a kernel whose own file was lost does that. Reading all bitcode and listing its symbols took 0.17
        of the 0.40 s of loading.
        """
        (name, kind, (code, bitcode)), descriptor, *rest = found
        engine = target_context.codegen()._engine
        engine._defined_symbols |= set(_entries(descriptor))
        only_code = (name, kind, (code, _empty_bitcode()))
        result = self._impl.rebuild(target_context, (only_code, descriptor, *rest))
        library = result.library

        def module_for_linking() -> Any:
            del library._get_module_for_linking  # from here on it is numba's own again
            library._shared_module = llvm.parse_bitcode(bitcode)
            engine._load_defined_symbols(library._shared_module)
            return library._shared_module

        library._get_module_for_linking = module_for_linking
        return result

    def _forget(self) -> None:
        with suppress(OSError):
            self.flush()

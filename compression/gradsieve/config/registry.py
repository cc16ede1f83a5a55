"""All algorithms, by name: the one place that says what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from gradsieve.config.base import CompressionConfig
from gradsieve.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T", bound=CompressionConfig)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm.

    name: of its constructor, on command lines and in results. title: in plots. kind: in a HorovodJob's
    ``spec.compression.algorithm``. make: its constructor, which takes ``density`` and settings.
    """

    name: str
    title: str
    kind: str
    make: Callable[..., CompressionConfig]


_REGISTERED: dict[str, Algorithm] = {}
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(_REGISTERED)
"""By name, in the order of their registration."""


def registered(name: str, owner: type) -> Algorithm:
    """Return the algorithm of that name; raises AttributeError, as ``owner`` does, if there is none."""
    if name not in _REGISTERED:
        known = ", ".join(_REGISTERED)
        raise AttributeError(f"{owner.__name__} has no algorithm {name!r}; it has {known}")
    return _REGISTERED[name]


def register(title: str, kind: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate the constructor of an algorithm's settings, whose name is the algorithm's.

    From then on `gradsieve.Compression` and `gradsieve_hvd.Compression` have it, jobs may name it, and demo,
    benchmarks and simulation offer it.

    Raises ConfigurationError if there is one of that name.
    """

    def decorated(make: Callable[P, T]) -> Callable[P, T]:
        name = make.__name__
        if name in _REGISTERED:
            raise ConfigurationError(f"algorithm {name!r} is registered already; choose another name")
        _REGISTERED[name] = Algorithm(name, title, kind, make)
        return make

    return decorated

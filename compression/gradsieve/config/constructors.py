"""What constructors of settings answer where they are misspelt or misplaced."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, ParamSpec, TypeVar

from gradsieve.config.base import CommonSettings
from gradsieve.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")
_CORRECT = "gradsieve_hvd.Compression.laplace(density=0.01)"


def constructor(function: Callable[P, T], known: Iterable[str] = ()) -> Callable[P, T]:
    """Decorate a constructor: unknown settings are refused by name, and so is Horovod's call of ``compress``
    where the constructor itself was handed over instead of what it returns.

    ``known``: names of settings beside those that `settings_of` finds.
    """
    names = list(dict.fromkeys([*settings_of(function), *known]))

    @functools.wraps(function)
    def checked(*args: P.args, **settings: P.kwargs) -> T:
        _refuse_unknown(function.__name__, settings, names)
        return function(*args, **settings)

    checked.compress = functools.partial(_refuse_function, function.__name__)  # type: ignore[attr-defined]
    return checked


def settings_of(function: Callable[..., object]) -> list[str]:
    """Return the names that a constructor takes: its own parameters, then those that all take."""
    kinds = inspect.signature(function).parameters.values()
    own = [parameter.name for parameter in kinds if parameter.kind is not parameter.VAR_KEYWORD]
    return own + [name for name in CommonSettings.__annotations__ if name not in own]


class NotACompressor(type):
    """Metaclass of the classes of constructors, for the case that Horovod is handed the class itself."""

    def compress(cls, tensor: Any) -> NoReturn:  # noqa: ARG002 - Horovod's call
        """Raise ConfigurationError: a constructor must be chosen and called."""
        raise ConfigurationError(
            f"compression={cls.__name__} is a class of constructors: choose one and call it, as in "
            f"compression={_CORRECT}"
        )


def _refuse_unknown(constructor: str, settings: Iterable[str], known: list[str]) -> None:
    for setting in settings:
        if setting not in known:
            near = " or ".join(repr(each) for each in difflib.get_close_matches(setting, known, n=2))
            meant = f"; did you mean {near}?" if near else "."
            raise TypeError(
                f"Compression.{constructor}() has no setting {setting!r}{meant} It takes {', '.join(known)}."
            )


def _refuse_function(name: str, tensor: Any) -> NoReturn:  # noqa: ARG001 - Horovod's call
    raise ConfigurationError(
        f"compression=Compression.{name} is a constructor that was not called: write "
        f"compression=gradsieve_hvd.Compression.{name}(density=0.01)"
    )

"""The values of ``mode=``, and what makes an optimizer of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gradsieve.errors import ConfigurationError

from .auto_mode import auto
from .balanced import balanced
from .local import local
from .request import Request
from .served import SERVED
from .synchronous import synchronous

MODES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"synchronous": synchronous, "balanced": balanced, "local": local, "auto": auto, **SERVED}
)
"""By name. Each takes a `Request`, and by keyword the settings that are its own."""


def optimizer_of(mode: str, request: Request, settings: Mapping[str, Any]) -> Any:
    """Return the distributed optimizer of a mode.

    settings: of the mode alone, by name.

    Raises:
        ConfigurationError: there is no such mode, or it takes no such setting.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise ConfigurationError(f"mode={mode!r}: known are {', '.join(map(repr, MODES))}")
    parameters = inspect.signature(MODES[mode]).parameters.values()
    own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    for name, value in settings.items():
        if name not in own:
            takes = ", ".join(f"{each}=" for each in own) or "no settings of its own"
            raise ConfigurationError(f"{name}={value!r} is not known; mode={mode!r} takes {takes}")
    return MODES[mode](request, **settings)

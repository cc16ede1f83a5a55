"""What ``compression=`` of a front door may be."""

from __future__ import annotations

from typing import Any

import gradsieve
from gradsieve.errors import ConfigurationError

from .settings import Settings


def settings_from(compression: Any) -> Settings:
    """Return the settings that ``compression=`` stands for.

    Raises:
        ConfigurationError: it is not one of `gradsieve_hvd.Compression`.
    """
    if compression is None:
        return Settings(config=gradsieve.Compression.laplace())
    if not isinstance(compression, Settings):
        raise ConfigurationError(
            f"compression={compression!r}: expected one of gradsieve_hvd.Compression, such as "
            "gradsieve_hvd.Compression.laplace(density=0.01)"
        )
    return compression

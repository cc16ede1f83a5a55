"""Saying where in an exchange a message did not come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradsieve.errors import ExchangeError


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add the phase of an exchange to what its transport raises.

    Raises:
        ExchangeError: what was raised within, with the phase.
    """
    try:
        yield
    except ExchangeError as error:
        raise ExchangeError(f"{error} (phase: {name})") from error

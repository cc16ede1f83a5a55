"""Times: seconds since the epoch inside, RFC 3339 in the API."""

from __future__ import annotations

import datetime as dt


def written(seconds: float | None, *, exactly: bool = False) -> str | None:
    """Return a time as the API has it, in whole seconds or exactly to the microsecond."""
    if seconds is None:
        return None
    precision = "microseconds" if exactly else "seconds"
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def read(text: str | None) -> float | None:
    """Return the seconds of what `written` wrote."""
    return None if text is None else dt.datetime.fromisoformat(text).timestamp()

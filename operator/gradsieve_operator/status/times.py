"""Times: seconds since the epoch inside, RFC 3339 in the API."""

from __future__ import annotations

import datetime as dt


def written(seconds: float | None) -> str | None:
    """Return a time as the API has it, in whole seconds."""
    if seconds is None:
        return None
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def read(text: str | None) -> float | None:
    """Return the seconds of what `written` wrote, or an earlier version to the microsecond."""
    return None if text is None else dt.datetime.fromisoformat(text).timestamp()

"""Numbers as people read them."""

from __future__ import annotations

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def duration(seconds: float) -> str:
    """Return seconds with the unit that suits them."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def size(count: float) -> str:
    """Return bytes with the unit that suits them."""
    for unit, of in _UNITS:
        if count >= of:
            return f"{count / of:.3g} {unit}"
    return f"{count:.0f} bytes"


def share(part: float) -> str:
    """Return a part of one as a percentage."""
    return f"{100 * part:.3g} %"


def number(value: float) -> str:
    """Return a number that may be large or small."""
    return f"{value:.4g}"

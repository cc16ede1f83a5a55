"""The error for bytes that are not what they should be."""

from __future__ import annotations

from gradsieve.errors import PayloadError


def unexpected(field: str, found: object, expected: object, advice: str) -> PayloadError:
    """Return the error for a payload whose ``field`` is not as expected."""
    return PayloadError(f"payload field '{field}': found {found!s}, expected {expected!s}; {advice}")

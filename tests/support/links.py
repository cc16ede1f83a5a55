"""What a test does where links cannot be emulated."""

from __future__ import annotations

import os

import pytest


def skip_where_refused(status: int, said: str) -> None:
    """Skip if a command ended because it was not allowed to emulate a link; CI requires one."""
    if status == 2 and "emulated link" in said and os.environ.get("GRADSIEVE_REQUIRE_LINK") != "1":
        pytest.skip(f"NO EMULATED LINK HERE: {said}")

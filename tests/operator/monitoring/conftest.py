"""Prometheus and its tools, where they are installed (Debian's package prometheus)."""

import os
import shutil

import pytest

REQUIRED = "GRADSIEVE_REQUIRE_CLUSTER"


def program(name: str) -> str:
    """Return the path of a program; skip what needs it where it is not, fail where that is forbidden."""
    found = shutil.which(name)
    if found is None:
        message = f"NO {name} HERE: install Debian's package prometheus"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{message} ({REQUIRED}=1 makes this a failure)")
        pytest.skip(message)
    return found


@pytest.fixture
def promtool() -> str:
    """The program that checks rules."""
    return program("promtool")


@pytest.fixture
def prometheus() -> str:
    """The server."""
    return program("prometheus")

"""The chart needs the harness's Helm; whatever cannot carry a cluster cannot compile it."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _helm(machine) -> None:
    """Skip, or fail, where Helm cannot be compiled."""

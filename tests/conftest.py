"""How the tests are shared out between processes (pytest-xdist), and what hypothesis may do."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from real_ranks import outcomes  # noqa: F401 - a fixture of all folders

# Processes of tests share the cores of a machine: more threads of libraries mostly wait for each other, and
# took a quarter of all processor time. Read when they are loaded, here and in whatever tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs that tests start begin with the `sitecustomize` there.
_QUICK_START = str(Path(__file__).parent / "support" / "quick_start")
if _QUICK_START not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_QUICK_START, os.environ.get("PYTHONPATH"))))

# How long an example takes says how busy the machine is. In CI the examples are the same each time: new ones
# are for those who can look at what they find.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process whole files, of the folders with fixtures of their own the whole folder, and to one
    process all tests on real ranks, which start once for all of them.

    (Groups, ``--dist loadgroup``, are not kept together: pytest 9 does not show pytest-xdist 3.8 the names
    that it gives them.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(config.rootpath / nodeid.split("::")[0])

    return Scheduling(config, log)


@cache
def _scope(file: Path) -> str:
    if "\n@on_ranks\n" in file.read_text():
        return "real ranks"
    return str(file.parent if (file.parent / "conftest.py").exists() else file)

"""How the tests are shared out between processes (pytest-xdist, ``-n 2``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process whole files, and of the folders with fixtures of their own the whole folder.

    Those start real ranks once for all their tests. (Groups, ``--dist loadgroup``, are not kept together:
    pytest 9 does not show pytest-xdist 3.8 the names that it gives them.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.split("::")[0])
            return str(file.parent if (config.rootpath / file.parent / "conftest.py").exists() else file)

    return Scheduling(config, log)

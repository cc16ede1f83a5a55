"""Judges the rights of the operator over all tests of a run, whether one process runs them or several do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rights import Asked, Right, in_words

_REPORTED = "rights"


class JudgedRights:
    """A plug-in of pytest's that gathers what tests have used, and fails where all together left some unused.

    Args:
        config: of the run.
        folder: a run of all tests in it is judged.

    Attributes:
        used: what the operator's account was allowed so far; None before any cluster was asked.
    """

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.used: set[Right] | None = None
        self._config = config
        chosen = config.option.keyword or config.option.markexpr or config.option.deselect
        self._whole = [Path(each).resolve() for each in config.args] == [folder] and not chosen

    def note(self, used: set[Right]) -> None:
        """Take note of what was used on one cluster."""
        self.used = (self.used or set()) | used

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Gather what the tests of another process have used."""
        reported = getattr(node, "workeroutput", {}).get(_REPORTED)
        if reported is not None:
            self.note({(group, resource, verb) for group, resource, verb in reported})

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail if all tests ran and passed without using all that the roles allow."""
        if self.used is None:
            return
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_REPORTED] = [list(right) for right in sorted(self.used)]
        elif exitstatus == pytest.ExitCode.OK and self._whole and Asked(used=self.used).unused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which rights were not used."""
        if self.used is not None:
            terminalreporter.section("rights of the operator")
            judged = (
                "granted, and not used in any test" if self._whole else "not used in this part of the tests"
            )
            terminalreporter.line(f"{judged}: {in_words(Asked(used=self.used).unused)}")

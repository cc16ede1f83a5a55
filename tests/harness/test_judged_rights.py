"""Rights that no test of a whole run has used fail the run, whichever process ran the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from pathlib import Path
from judged_rights import JudgedRights
from manifests import operator_rights

RIGHTS = pytest.StashKey()

def pytest_configure(config):
    config.stash[RIGHTS] = JudgedRights(config, Path(__file__).parent)
    config.pluginmanager.register(config.stash[RIGHTS])

@pytest.fixture
def use(request):
    allowed = sorted(operator_rights("ClusterRole") | operator_rights("Role"))
    return lambda first, last: request.config.stash[RIGHTS].note(set(allowed[first:last]))
"""
PARTS = {"test_left.py": (0, 20), "test_right.py": (20, None)}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two files of tests that together use all rights."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, (first, last) in PARTS.items():
        (tmp_path / name).write_text(f"def test_it(use):\n    use({first}, {last})\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in the folder in two processes."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "--numprocesses=2",
        "--dist=loadfile",
        *arguments,
    ]
    # Other plug-ins that are installed import for longer than all of this takes.
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, **plain, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_what_two_processes_have_used_is_judged_together(folder):
    found = run(folder, str(folder))
    assert "granted, and not used in any test: none" in found.stdout
    assert found.returncode == 0, found.stdout


def test_what_neither_has_used_fails_the_run_and_is_named(folder):
    (folder / "test_right.py").write_text("def test_it(use):\n    use(20, -1)\n")
    found = run(folder, str(folder))
    assert "2 passed" in found.stdout
    assert "granted, and not used in any test: " in found.stdout
    assert "not used in any test: none" not in found.stdout
    assert found.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_part_is_not_judged(folder):
    found = run(folder, "test_left.py")
    assert "not used in this part of the tests: " in found.stdout
    assert found.returncode == 0

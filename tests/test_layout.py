"""The repository's shape: folders that shadow nothing, packages that say they are typed."""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)")
PACKAGES = ["compression/gradsieve", "hvd_plugin/gradsieve_hvd", "operator/gradsieve_operator"]


@pytest.mark.parametrize("folder", ["compression", "hvd_plugin", "operator", "manifests", "helm"])
def test_an_outer_folder_is_no_package(folder):
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_of_tests_is_a_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_typed_and_stands_alone_in_its_folder(package):
    folder = ROOT / package
    assert (folder / "__init__.py").is_file()
    assert (folder / "py.typed").is_file()
    beside = {path.name for path in folder.parent.iterdir() if path.name != "__pycache__"}
    assert beside == {folder.name}


@pytest.mark.parametrize("name", ["operator", "compression"])
def test_the_standard_library_is_not_shadowed_at_the_root(name):
    program = (
        f"import {name}; print(getattr({name}, '__file__', None))" if name == "operator" else "import zipfile"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout


def test_every_requirement_is_pinned_to_one_version_that_fits_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    named = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *itertools.chain(*extras),
    ]
    pins = dict(PIN.fullmatch(line).groups() for line in constraint_lines())
    for requirement in map(Requirement, named):
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_constraints_hold_versions_only_and_no_addresses():
    assert [line for line in constraint_lines() if not PIN.fullmatch(line)] == []
    assert "://" not in (ROOT / "constraints.txt").read_text()


def constraint_lines() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

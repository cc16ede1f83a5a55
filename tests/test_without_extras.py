"""Without extras the library and the command line work: neither Horovod nor MPI nor any extra is imported."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "prometheus-client": "prometheus_client",
    "websocket-client": "websocket",
}
BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked: an extra)", name=name)
sys.meta_path.insert(0, Blocker())
"""


def extras_only() -> set[str]:
    """Return the import names of what only the extras bring."""
    lines = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    base = {Requirement(line).name for line in PROJECT["dependencies"]} | {"setuptools", "pip"}
    named = {Requirement(line).name for line in lines} - base
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in named} | {"horovod"}


CALLS = [["--version"], ["--help"], ["run", "--help"], ["build-horovod", "--help"]]
PROGRAM = """
import importlib, json, traceback
from click.testing import CliRunner

def outcome(package):
    try:
        importlib.import_module(package)
    except ImportError:
        return traceback.format_exc()

packages = ("gradsieve", "gradsieve_hvd", "gradsieve_operator", "mpi4py")
outcomes = {{package: outcome(package) for package in packages}}
from gradsieve_hvd.cli import main
for call in {calls!r}:
    done = CliRunner().invoke(main, call, prog_name="gradsieve")
    outcomes[" ".join(call)] = [done.exit_code, done.output]
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict:
    """Import everything in one process that cannot find the extras' packages: torch loads only once."""
    source = BLOCK.format(blocked=extras_only()) + PROGRAM.format(calls=CALLS)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_blocker_blocks(outcomes):
    assert {"horovod", "mpi4py", "pyroute2", "psutil", "sklearn", "yaml"} <= extras_only()
    assert "blocked" in outcomes["mpi4py"]


@pytest.mark.parametrize("package", ["gradsieve", "gradsieve_hvd", "gradsieve_operator"])
def test_each_package_imports(outcomes, package):
    assert outcomes[package] is None


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_the_command_line_answers(outcomes, call):
    status, output = outcomes[" ".join(call)]
    assert (status, "gradsieve" in output) == (0, True), output

"""The Horovod of this environment: movable, complete, and built for what is installed beside it."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from gradsieve_hvd.horovod_build import repair

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed: gradsieve build-horovod"
)
LOADER_FOLDERS = [Path(name) for name in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")]


@pytest.fixture(scope="module")
def library() -> Path:
    folder = Path(sysconfig.get_path("platlib")) / "horovod" / "torch"
    (found,) = folder.glob("mpi_lib_v2*.so")
    return found


def ask(option: str, library: Path) -> list[str]:
    done = subprocess.run(
        [repair.patchelf(), option, str(library)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().replace(":", "\n").splitlines()


def test_no_library_path_is_absolute(library):
    paths = ask("--print-rpath", library)
    assert paths
    assert [path for path in paths if not path.startswith("$ORIGIN/")] == []


def test_every_needed_library_is_found_by_a_relative_path_or_by_the_loader(library):
    own = [Path(path.replace("$ORIGIN", str(library.parent))) for path in ask("--print-rpath", library)]
    system = [*LOADER_FOLDERS, *Path("/lib").glob("*-linux-gnu"), *Path("/usr/lib").glob("*-linux-gnu")]
    missing = [
        name
        for name in ask("--print-needed", library)
        if not any((f / name).exists() for f in [*own, *system])
    ]
    assert missing == []


def test_it_was_built_for_the_torch_installed(library):
    note = importlib.metadata.distribution("horovod").read_text(repair.PROVENANCE)
    assert note is not None
    assert json.loads(note)["torch"] == torch.__version__

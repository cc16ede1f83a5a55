"""A repaired wheel holds no path of the environment that built it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build import repair
from gradsieve_hvd.horovod_build.environment import Environment, Mpi, Torch

NAMES = st.lists(st.text("abc.-_0", min_size=1).filter(lambda name: name not in (".", "..")), max_size=4)


@given(prefix=NAMES, library=NAMES, module=NAMES)
def test_within_the_environment_the_path_is_relative_and_leads_to_the_library(prefix, library, module):
    home = Path("/no-such-root", *prefix)
    entry = repair.runtime_path(home.joinpath(*library), home.joinpath(*module), home)
    assert entry is not None
    assert entry.startswith("$ORIGIN/")
    found = os.path.normpath(entry.replace("$ORIGIN", str(home.joinpath(*module))))
    assert found == str(home.joinpath(*library))


def test_the_loaders_own_folders_need_no_entry():
    assert repair.runtime_path(Path("/usr/lib/x86_64-linux-gnu"), Path("/env/x"), Path("/env")) is None
    assert repair.runtime_path(Path("/usr/local/lib"), Path("/env/x"), Path("/env")) is None


def test_a_library_elsewhere_keeps_its_place():
    assert repair.runtime_path(Path("/opt/openmpi/lib"), Path("/env/x"), Path("/env")) == "/opt/openmpi/lib"


needs_patchelf = pytest.mark.skipif(
    not Path(repair.patchelf()).exists(), reason="patchelf is not installed here"
)


@pytest.fixture
def environment(tmp_path) -> Environment:
    prefix = tmp_path / "builder"
    site = prefix / "lib/python3.11/site-packages"
    torch = Torch("2.15.0", site / "torch", None, 20)
    mpi = Mpi("Open MPI 5", prefix / "bin/mpicxx", prefix / "lib")
    mpi = Mpi("Open MPI 5", prefix / "bin/mpicxx", prefix / "lib")
    return Environment("cp311-linux-x86_64", prefix, site, torch, mpi)


def built_wheel(tmp_path: Path, environment: Environment, library: bool = True) -> Path:
    """Pack a wheel of Horovod's shape whose library carries the builder's paths, as CMake leaves them."""
    root = tmp_path / "tree"
    module = root / "horovod/torch"
    module.mkdir(parents=True)
    if library:
        compiler = shutil.which("c++")
        assert compiler is not None
        paths = f"-Wl,-rpath,{environment.mpi.library_folder}:{environment.torch.library_folder}"
        source = ["-x", "c++", os.devnull, "-o", str(module / "mpi_lib_v2.so")]
        subprocess.run([compiler, "-shared", "-fPIC", paths, *source], check=True)
    info = root / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", "-d", str(tmp_path), str(root)],
        check=True,
        capture_output=True,
    )
    return next(tmp_path.glob("*.whl"))


@needs_patchelf
def test_a_repaired_library_names_no_folder_of_the_builder(tmp_path, environment):
    wheel = built_wheel(tmp_path, environment)
    work = tmp_path / "work"
    work.mkdir()
    repaired = repair.repair_wheel(wheel, environment, {"torch": "2.15.0"}, work)
    with zipfile.ZipFile(repaired) as archive:
        archive.extract("horovod/torch/mpi_lib_v2.so", work)
    library = work / "horovod/torch/mpi_lib_v2.so"
    paths = subprocess.run(
        [repair.patchelf(), "--print-rpath", library], capture_output=True, text=True, check=True
    )
    assert paths.stdout.strip() == "$ORIGIN/../../../..:$ORIGIN/../../torch/lib"
    assert os.fsencode(environment.prefix) not in library.read_bytes()


@needs_patchelf
def test_a_repaired_wheel_says_what_it_was_built_for_and_its_record_is_right(tmp_path, environment):
    work = tmp_path / "work"
    work.mkdir()
    repaired = repair.repair_wheel(built_wheel(tmp_path, environment), environment, {"torch": "2.15.0"}, work)
    with zipfile.ZipFile(repaired) as archive:
        note = json.loads(archive.read(f"horovod-0.28.1.dist-info/{repair.PROVENANCE}"))
        assert (
            f"horovod-0.28.1.dist-info/{repair.PROVENANCE}"
            in archive.read("horovod-0.28.1.dist-info/RECORD").decode()
        )
    assert note == {"torch": "2.15.0"}
    checked = [sys.executable, "-m", "wheel", "unpack", "-d", str(tmp_path / "again"), str(repaired)]
    assert subprocess.run(checked, capture_output=True).returncode == 0


def test_a_wheel_without_the_torch_library_is_refused(tmp_path, environment):
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(BuildError, match=r"holds no horovod/torch/\*\.so"):
        repair.repair_wheel(built_wheel(tmp_path, environment, library=False), environment, {}, work)

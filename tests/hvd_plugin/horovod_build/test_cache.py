"""Built wheels are kept by what they were built for, whole or not at all."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradsieve_hvd.horovod_build import cache
from gradsieve_hvd.horovod_build.environment import Environment, Mpi, Nccl, Torch

PREFIX = Path("/home/someone/project/.venv")
SITE = PREFIX / "lib/python3.11/site-packages"
TORCH = Torch("2.15.0+cu132", SITE / "torch", "13.2", 20)
MPI = Mpi("Open MPI 5.0.11", PREFIX / "bin/mpicxx", PREFIX / "lib")
HERE = Environment("cp311-linux-x86_64", PREFIX, SITE, TORCH, MPI)
NCCL = Nccl("2.30.7", Path("/usr/include"), Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2"))
FLAGS = {"HOROVOD_WITH_MPI": "1"}


def entry(
    environment: Environment, flags: dict[str, str] = FLAGS, environ: dict[str, str] | None = None
) -> str:
    return cache.entry_name(cache.build_facts(environment, flags, environ or {}))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(HERE, python="cp312-linux-x86_64"), id="Python"),
        pytest.param(replace(HERE, torch=replace(TORCH, version="2.14.0")), id="torch"),
        pytest.param(replace(HERE, torch=replace(TORCH, cxx_standard=17)), id="standard"),
        pytest.param(replace(HERE, mpi=replace(MPI, version="Open MPI 4.1.4")), id="MPI"),
        pytest.param(replace(HERE, mpi=replace(MPI, library_folder=Path("/opt/mpi/lib"))), id="MPI's folder"),
        pytest.param(replace(HERE, cuda_home=Path("/usr/local/cuda")), id="CUDA"),
        pytest.param(replace(HERE, nccl=NCCL), id="NCCL"),
        pytest.param(replace(HERE, cpu_features="avx"), id="CPU"),
    ],
)
def test_everything_that_changes_the_library_has_an_entry_of_its_own(other):
    assert entry(other) != entry(HERE)


def test_flags_and_compiler_settings_have_entries_of_their_own():
    names = {
        entry(HERE),
        entry(HERE, {**FLAGS, "HOROVOD_WITH_GLOO": "1"}),
        entry(HERE, FLAGS, {"CXXFLAGS": "-Os"}),
    }
    assert len(names) == 3


def test_another_clone_shares_the_entry():
    prefix = Path("/srv/other/.venv")
    site = prefix / "lib/python3.11/site-packages"
    moved = replace(
        HERE,
        prefix=prefix,
        site_packages=site,
        torch=replace(TORCH, folder=site / "torch"),
        mpi=replace(MPI, compiler=prefix / "bin/mpicxx", library_folder=prefix / "lib"),
    )
    assert entry(moved) == entry(HERE)


def test_an_entrys_name_can_be_read():
    assert entry(HERE).startswith("cp311-linux-x86_64-torch-2.15.0+cu132-")


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"XDG_CACHE_HOME": "/big/cache", "HOME": "/home/x"}, "/big/cache/gradsieve/horovod"),
        ({"HOME": "/home/x"}, "/home/x/.cache/gradsieve/horovod"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/x"}, "/home/x/.cache/gradsieve/horovod"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/x"}, "/home/x/.cache/gradsieve/horovod"),
    ],
)
def test_the_cache_is_where_the_xdg_rules_put_it(environ, root):
    assert cache.cache_root(environ) == Path(root)


def test_a_stored_wheel_is_found_again(tmp_path):
    assert cache.cached_wheel(tmp_path) is None
    (tmp_path / "building").mkdir()
    built = tmp_path / "building" / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    built.write_bytes(b"wheel")
    assert cache.cached_wheel(tmp_path) is None
    stored = cache.store(built, tmp_path)
    assert cache.cached_wheel(tmp_path) == stored
    assert not built.exists()


HOLDER = """
import sys
from pathlib import Path
from gradsieve_hvd.horovod_build.cache import build_folder, build_lock
with build_lock(Path(sys.argv[1]), lambda: None), build_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half a wheel")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_build_waits_for_the_first_and_clears_up_after_it_when_it_is_killed(tmp_path, holder):
    def told() -> None:
        waits.append("waiting")
        assert (tmp_path / "building" / "half").exists()
        holder.kill()

    waits: list[str] = []
    with cache.build_lock(tmp_path, told), cache.build_folder(tmp_path) as folder:
        assert waits == ["waiting"]
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_a_build_that_has_the_lock_to_itself_does_not_wait(tmp_path):
    for _again in range(2):
        with cache.build_lock(tmp_path, lambda: pytest.fail("nobody else holds the lock")):
            assert (tmp_path / "lock").exists()

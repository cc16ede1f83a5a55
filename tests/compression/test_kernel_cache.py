"""Compiled kernels come from what an image brings or from the user's cache; what neither has is compiled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forked_programs import run_forked

import gradsieve.kernels  # noqa: F401 - the cache folder of this process is filled from here on
from gradsieve.codec.checksum import checksum
from gradsieve.kernels.kernel_cache import digest_of_sources, own_folder

LOADED = """
import numpy as np
from gradsieve.kernels.groups import nth_by_counting
assert nth_by_counting(np.arange(5), 5, 2) == 3
print("loaded" if nth_by_counting.stats.cache_hits else "compiled")
"""
CHECKSUM = """
import re
import numpy as np
from gradsieve.codec.checksum import _mix, checksum
how = ["loaded" if it.stats.cache_hits else "compiled" for it in (_mix, checksum)]
print(*how, checksum(np.arange(100, dtype=np.uint8), 3, 98), end="")
if how[1] == "compiled":
    (text,) = checksum.inspect_llvm().values()
    print(" _mix is called" if re.search("call .*_mix", text) else " nothing is called")
"""
EXPECTED_CHECKSUM = checksum(np.arange(100, dtype=np.uint8), 3, 98)
FILES = f"{digest_of_sources()}/kernels/groups.nth_by_counting-*"
NOWHERE = "/dev/null/cache"


def start(program: str, **environment: str) -> str:
    dropped = ("NUMBA_CACHE_DIR", "GRADSIEVE_KERNELS")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    ended, printed = run_forked(program, kept | environment)
    assert ended, printed
    return printed.strip()


@pytest.fixture
def copied(tmp_path) -> Path:
    return shutil.copytree(
        own_folder() / digest_of_sources(), tmp_path / "copied" / digest_of_sources()
    ).parent


def test_a_process_loads_what_the_image_brings_and_writes_nothing(tmp_path):
    assert start(LOADED, GRADSIEVE_KERNELS=str(own_folder()), XDG_CACHE_HOME=str(tmp_path)) == "loaded"
    assert not list(tmp_path.iterdir())


def test_it_does_so_too_where_no_cache_can_be_written():
    assert start(LOADED, GRADSIEVE_KERNELS=str(own_folder()), XDG_CACHE_HOME=NOWHERE) == "loaded"


def test_a_user_without_a_home_has_a_folder_that_cannot_be_written(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    with pytest.raises(NotADirectoryError):
        own_folder().mkdir(parents=True)


def test_what_the_image_lacks_is_compiled_and_kept_in_the_users_cache(copied, tmp_path):
    for file in copied.glob(FILES):
        file.unlink()
    environment = {"GRADSIEVE_KERNELS": str(copied), "XDG_CACHE_HOME": str(tmp_path / "own")}
    assert start(LOADED, **environment) == "compiled"
    assert start(LOADED, **environment) == "loaded"
    assert len(list((tmp_path / "own" / "gradsieve" / "numba").glob(FILES))) == 2  # an index and a body


def test_what_the_image_lacks_is_compiled_where_no_cache_can_be_written(copied):
    for file in copied.glob(FILES):
        file.unlink()
    assert start(LOADED, GRADSIEVE_KERNELS=str(copied), XDG_CACHE_HOME=NOWHERE) == "compiled"


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("part", [0.0, 0.6])
def test_a_file_that_was_cut_short_is_compiled_and_written_anew(copied, suffix, part):
    (file,) = (path for path in copied.glob(FILES) if path.suffix == suffix)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * len(whole))])
    assert start(LOADED, NUMBA_CACHE_DIR=str(copied)) == "compiled"
    assert start(LOADED, NUMBA_CACHE_DIR=str(copied)) == "loaded"


def test_a_function_whose_own_code_is_lost_absorbs_loaded_ones_as_ever(copied):
    for file in copied.glob(f"{digest_of_sources()}/codec/checksum.checksum-*"):
        file.unlink()
    environment = {"GRADSIEVE_KERNELS": str(copied), "XDG_CACHE_HOME": NOWHERE}
    assert start(CHECKSUM) == f"loaded loaded {EXPECTED_CHECKSUM}"
    assert start(CHECKSUM, **environment) == f"loaded compiled {EXPECTED_CHECKSUM} nothing is called"


def test_the_users_own_compiled_functions_find_all_of_numba():
    pytest.importorskip("scipy", reason="numba multiplies matrices with it")
    program = """
import sys
import gradsieve.kernels, gradsieve.codec
assert "scipy.linalg" not in sys.modules  # which takes a third of a second
import numba, numpy
numbers = numpy.arange(9.0).reshape(3, 3)
assert (numba.njit(lambda a, b: a @ b)(numpy.eye(3), numbers) == numbers).all()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr

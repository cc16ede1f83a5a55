"""Compiled kernels that a container image brings are used where the user's cache folder is still empty."""

import os
import subprocess
import sys
from pathlib import Path

import gradsieve.kernels  # noqa: F401 - the cache folder of this process exists from here on
from gradsieve.kernels import jit

HITS = """
import gradsieve.kernels.loops as loops
print(sum(loops.sum_and_list.stats.cache_hits.values()), sum(loops.sum_and_list.stats.cache_misses.values()))
"""


def hits_and_misses(**environment: str) -> tuple[int, int]:
    cleared = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", HITS], env=cleared | environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


def compiled_here() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or jit._user_cache())


def test_a_process_with_an_empty_cache_loads_what_the_image_brings(tmp_path):
    assert hits_and_misses(XDG_CACHE_HOME=str(tmp_path), GRADSIEVE_KERNELS=str(compiled_here())) == (1, 0)
    (made,) = (tmp_path / "gradsieve" / "numba").iterdir()
    assert made.name == jit._digest_of_sources()


def test_two_processes_that_start_at_once_leave_one_whole_copy(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "GRADSIEVE_KERNELS": str(compiled_here())}
    environment.pop("NUMBA_CACHE_DIR", None)
    ranks = [subprocess.Popen([sys.executable, "-c", HITS], env=environment) for _ in range(3)]
    assert [rank.wait(250) for rank in ranks] == [0, 0, 0]
    assert [path.name for path in (tmp_path / "gradsieve" / "numba").iterdir()] == [jit._digest_of_sources()]

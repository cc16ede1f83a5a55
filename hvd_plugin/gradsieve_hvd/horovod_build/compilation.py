"""How Horovod is compiled: flags, environment, number of jobs, and how far make is."""

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from gradsieve_hvd.horovod_build.environment import Environment, Nccl

_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]")
_JOB_BYTES = 2 << 30
"""Memory of one compiler on torch's headers (measured: 1.8 GiB at most)."""


def build_flags(environment: Environment) -> dict[str, str]:
    """Return the variables that choose what Horovod's CMake builds; part of the cache's key."""
    flags = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    }
    if environment.nccl is not None:
        flags |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
    return flags


def link_nccl(nccl: Nccl, folder: Path) -> None:
    """Put `libnccl.so` into a new `folder`: the pip wheel has only `libnccl.so.2`, which linkers ignore."""
    folder.mkdir()
    (folder / "libnccl.so").symlink_to(nccl.library)


def build_environ(environment: Environment, environ: Mapping[str, str], nccl_folder: Path) -> dict[str, str]:
    """Return the build's complete environment.

    The user's HOROVOD_* variables are left out: some of them are settings for running that CMake reads too,
    and would give a library that the cache's key does not describe. So are make's own: inside `make setup`
    they name another make's job server.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("HOROVOD_") and name not in ("MAKELEVEL", "MFLAGS", "PYTHONPATH", "PYTHONHOME")
    }
    path = [sysconfig.get_path("scripts"), str(environment.mpi.compiler.parent), environ.get("PATH", "")]
    kept |= build_flags(environment) | {"PATH": os.pathsep.join(path), "MAKEFLAGS": f"-j{jobs()}"}
    if environment.cuda_home is not None:
        kept |= {"CUDA_HOME": str(environment.cuda_home), "HOROVOD_CUDA_HOME": str(environment.cuda_home)}
    if environment.nccl is not None:
        kept |= {"HOROVOD_NCCL_INCLUDE": str(environment.nccl.include), "HOROVOD_NCCL_LIB": str(nccl_folder)}
    return kept


def jobs(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how many compilers may run at once: one a core, as far as `meminfo` has memory."""
    cores = len(os.sched_getaffinity(0))
    available = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return max(1, min(cores, (int(available[1]) << 10) // _JOB_BYTES)) if available else cores


def wheel_command(source: Path, folder: Path) -> list[str]:
    """Return the pip command that builds the source tree's wheel into `folder`, showing make's output."""
    return [
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--verbose",
        "--wheel-dir", str(folder), str(source),
    ]  # fmt: skip


def percent_done(line: str) -> int | None:
    """Return the percentage in a line of make's output (`[ 42%] Building ...`), or None."""
    match = _PERCENT.match(line)
    return int(match[1]) if match else None

"""Keep built wheels in the user's cache folder, one folder for each combination that changes the library."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gradsieve_hvd.horovod_build.environment import Environment
from gradsieve_hvd.horovod_build.patches import RECIPE
from gradsieve_hvd.horovod_build.repair import runtime_paths

HOROVOD_VERSION = "0.28.1"
_COMPILER_SETTINGS = ("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of all cached wheels: `$XDG_CACHE_HOME` or `~/.cache`, then gradsieve/horovod.

    The XDG rules let a relative `$XDG_CACHE_HOME` count as unset.
    """
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "gradsieve" / "horovod"


def build_facts(
    environment: Environment, flags: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return everything that decides what the built library is: the cache's key, and the wheel's provenance.

    Args:
        environment: what Horovod is built against.
        flags: the build's own environment variables.
        environ: the user's environment, for the compiler's settings.
    """
    return {
        "horovod": HOROVOD_VERSION,
        "recipe": str(RECIPE),
        "python": environment.python,
        "torch": environment.torch.version,
        "cxx_standard": str(environment.torch.cxx_standard),
        "mpi": environment.mpi.version,
        "cuda": (environment.torch.cuda or "") if environment.cuda_home else "",
        "nccl": environment.nccl.version if environment.nccl else "",
        "cpu": environment.cpu_features,
        "flags": " ".join(f"{name}={value}" for name, value in sorted(flags.items())),
        "compiler": " ".join(f"{name}={environ[name]}" for name in _COMPILER_SETTINGS if environ.get(name)),
        "runtime_paths": ":".join(runtime_paths(environment)),
    }


def entry_name(facts: Mapping[str, str]) -> str:
    """Return the entry's folder name: readable facts first, then a digest of all of them."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{facts['python']}-torch-{facts['torch']}-{digest}"


def cached_wheel(entry: Path) -> Path | None:
    """Return the wheel in `entry`, or None; wheels get there by renaming only, so what is there is whole."""
    return next(iter(sorted(entry.glob("horovod-*.whl"))), None)


def store(wheel: Path, entry: Path) -> Path:
    """Move `wheel` (on the same file system) into `entry` in one step and return its new path."""
    target = entry / wheel.name
    return wheel.replace(target)


@contextmanager
def build_lock(entry: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the entry's lock; `on_wait` is called once when another build of the same wheel holds it now.

    The kernel drops the lock with the process, so that a killed build blocks nobody.
    """
    entry.mkdir(parents=True, exist_ok=True)
    with (entry / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def build_folder(entry: Path) -> Iterator[Path]:
    """Yield an empty folder to build in, inside `entry`, and remove it at the end.

    Only the holder of the lock calls this, so what lies there already is a killed build's and is removed.
    """
    folder = entry / "building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

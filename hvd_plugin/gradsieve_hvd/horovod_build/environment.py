"""What Horovod is built against: the interpreter, torch, MPI and, where they are found, CUDA and NCCL."""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradsieve.errors import BuildError

SUPPORTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
_LOWEST_STANDARD = 17
_CPU_FEATURES = ("avx", "f16c", "fma")
_STANDARD_DEMAND = re.compile(r"#error C\+\+(\d\d) or later compatible compiler")


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed torch, looked at without importing it."""

    version: str
    folder: Path
    cuda: str | None
    cxx_standard: int

    @property
    def library_folder(self) -> Path:
        """The folder of libtorch and libc10."""
        return self.folder / "lib"


@dataclass(frozen=True, slots=True)
class Mpi:
    """The MPI found: its version line, its C++ compiler wrapper and the folder of libmpi."""

    version: str
    compiler: Path
    library_folder: Path


@dataclass(frozen=True, slots=True)
class Nccl:
    """NCCL's headers and library, with which Horovod exchanges GPU tensors without the host."""

    version: str
    include: Path
    library: Path


@dataclass(frozen=True, slots=True)
class Environment:
    """All that decides what the built library looks like."""

    python: str
    prefix: Path
    site_packages: Path
    torch: Torch
    mpi: Mpi
    cuda_home: Path | None = None
    nccl: Nccl | None = None
    cpu_features: str = ""


def demanded_standard(torch_folder: Path) -> int:
    """Return the C++ standard that torch's headers demand, 17 at least.

    The headers say it in an `#error` line of `ATen/ATen.h` (2.15: C++20), a better source than a table of
    versions here.
    """
    header = torch_folder / "include" / "ATen" / "ATen.h"
    text = header.read_text(encoding="utf-8", errors="replace") if header.is_file() else ""
    return max([_LOWEST_STANDARD, *(int(standard) for standard in _STANDARD_DEMAND.findall(text))])


def python_tag(version: tuple[int, int] | None = None) -> str:
    """Return the interpreter's wheel tag with the platform, as `cp311-linux-x86_64`.

    Raises:
        BuildError: the interpreter or the platform is none that this build is known to work on.
    """
    major, minor = version or sys.version_info[:2]
    if sys.implementation.name != "cpython" or (major, minor) not in SUPPORTED_PYTHONS:
        supported = ", ".join(f"{a}.{b}" for a, b in SUPPORTED_PYTHONS)
        raise BuildError(
            f"Python {major}.{minor} ({sys.implementation.name}) is not supported: "
            f"Horovod 0.28.1 is built for CPython {supported}"
        )
    if sys.platform != "linux":
        raise BuildError(f"the platform {sys.platform} is not supported: this build is for Linux")
    return f"cp{major}{minor}-{sysconfig.get_platform()}"


def find_torch() -> Torch:
    """Find the installed torch without importing it (importing takes seconds and much memory).

    Raises:
        BuildError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch is not installed in this environment: pip install torch")
    folder = Path(spec.submodule_search_locations[0])
    facts = runpy.run_path(str(folder / "version.py"))
    return Torch(str(facts["__version__"]), folder, facts.get("cuda"), demanded_standard(folder))


def _answer(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def find_mpi(scripts: Path, environ: Mapping[str, str]) -> Mpi:
    """Find MPI's C++ wrapper: the one in the environment's own `scripts` folder first, then on the path.

    Raises:
        BuildError: there is none, or it does not say where its library is.
    """
    search = os.pathsep.join([str(scripts), environ.get("PATH", "")])
    wrapper = shutil.which("mpicxx", path=search)
    if wrapper is None:
        raise BuildError(
            "MPI is not installed (mpicxx not found): pip install 'gradsieve[hvd]' brings Open MPI"
        )
    version = _answer([wrapper, "--showme:version"]) or _answer([wrapper, "-v"])
    folders = _answer([wrapper, "--showme:libdirs"]).split() or re.findall(
        r"-L(\S+)", _answer([wrapper, "-show"])
    )
    home = next((Path(name) for name in folders if any(Path(name).glob("libmpi*.so*"))), None)
    if home is None:
        raise BuildError(
            f"{wrapper} does not say where libmpi is (looked in {folders}): install MPI's development files"
        )
    named = re.search(r"(?:Open MPI|MPICH version|MPICH) [\w.]+", version)
    return Mpi(named[0] if named else "unknown MPI", Path(wrapper), home)


def _nccl_version(header: Path) -> str:
    numbers = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) +(\d+)", header.read_text(errors="replace"))
    return ".".join(numbers[:3])


def find_cuda(torch: Torch, environ: Mapping[str, str]) -> Path | None:
    """Find the CUDA toolkit (the folder with bin/nvcc) for a torch built for CUDA, or None."""
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    named = environ.get("HOROVOD_CUDA_HOME") or environ.get("CUDA_HOME")
    home = Path(named) if named else Path(nvcc).resolve().parent.parent if nvcc else Path("/usr/local/cuda")
    return home if torch.cuda is not None and (home / "bin" / "nvcc").is_file() else None


def find_nccl(torch: Torch, cuda_home: Path | None, environ: Mapping[str, str]) -> Nccl | None:
    """Find NCCL beside a CUDA toolkit, or None.

    It is searched in `$HOROVOD_NCCL_HOME`, in the toolkit, in the system, and in the `nvidia-nccl` wheel that
    torch's CUDA build brings.
    """
    if cuda_home is None:
        return None
    named = [Path(environ["HOROVOD_NCCL_HOME"])] if environ.get("HOROVOD_NCCL_HOME") else []
    for home in [*named, cuda_home, Path("/usr"), torch.folder.parent / "nvidia" / "nccl"]:
        header = home / "include" / "nccl.h"
        folders = ("lib64", "lib", "lib/*-linux-gnu")
        libraries = [path for folder in folders for path in home.glob(f"{folder}/libnccl.so*")]
        if header.is_file() and libraries:
            return Nccl(_nccl_version(header), header.parent, min(libraries))
    return None


def find_cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return which of the instruction sets that Horovod's CMake asks for this machine has.

    They decide the compiler's flags: a cache on a shared file system must tell machines apart by them.
    """
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return " ".join(name for name in _CPU_FEATURES if flags and name in flags[1].split())


def detect(environ: Mapping[str, str] = os.environ) -> Environment:
    """Look at the running interpreter's environment.

    Raises:
        BuildError: one line for each of Python, torch and MPI that is missing or not supported.
    """
    problems: list[str] = []
    found: list[object] = []
    for look in (python_tag, find_torch, lambda: find_mpi(Path(sysconfig.get_path("scripts")), environ)):
        try:
            found.append(look())
        except BuildError as problem:
            problems.append(str(problem))
    if problems:
        raise BuildError("\n".join(problems))
    tag, torch, mpi = found
    assert isinstance(tag, str)
    assert isinstance(torch, Torch)
    assert isinstance(mpi, Mpi)
    site_packages = Path(sysconfig.get_path("platlib"))
    cuda_home = find_cuda(torch, environ)
    nccl = find_nccl(torch, cuda_home, environ)
    prefix = Path(sys.prefix)
    return Environment(tag, prefix, site_packages, torch, mpi, cuda_home, nccl, find_cpu_features())

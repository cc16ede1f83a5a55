"""What a C++ build needs from the machine: a compiler, make and Python's headers.

Only the standard library is imported, so that the file also runs by itself (`python toolchain.py`) before
anything is installed: the set-up tells of a missing compiler in a second, not after downloading torch.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

NEWEST_STANDARD = 20
"""The C++ standard that the newest torch known to this release demands (2.15: C++20)."""

# A feature of the library and one of the language for each: a compiler that only knows the option fails.
_PROBES = {
    17: "#include <optional>\nstd::optional<int> probe;\ntemplate <auto N> struct Probe {};\n",
    20: "#include <concepts>\n#include <span>\ntemplate <std::integral T> T probe(T);\n",
}


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """Return the compiler that CMake would take: `$CXX`, else the first of c++, g++, clang++ on the path."""
    candidates = [environ["CXX"].split()[0]] if environ.get("CXX", "").strip() else ["c++", "g++", "clang++"]
    found = (shutil.which(name, path=environ.get("PATH")) for name in candidates)
    return next((compiler for compiler in found if compiler), None)


def compiles_standard(compiler: str, standard: int) -> bool:
    """Return whether `compiler` accepts a program of the C++ `standard` (17, 20), its library included."""
    source = _PROBES[max(known for known in _PROBES if known <= max(standard, min(_PROBES)))]
    command = [compiler, f"-std=c++{standard}", "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def compiler_problem(environ: Mapping[str, str], standard: int) -> str | None:
    """Return one line that says what is wrong with the C++ compiler, or None."""
    compiler = find_compiler(environ)
    if compiler is None:
        wanted = environ.get("CXX", "").strip() or "c++, g++ or clang++"
        return f"no C++ compiler ({wanted} not found): install g++ (Debian, Ubuntu: package g++) or set CXX"
    if not compiles_standard(compiler, standard):
        return f"the C++ compiler {compiler} cannot do C++{standard}: set CXX to GCC >= 11 or Clang >= 14"
    return None


def make_problem(environ: Mapping[str, str]) -> str | None:
    """Return one line that says that make is missing, or None."""
    if shutil.which("make", path=environ.get("PATH")):
        return None
    return "make not found: install it (Debian, Ubuntu: package make)"


def headers_problem(include: Path) -> str | None:
    """Return one line that says that Python's headers are missing from the folder `include`, or None."""
    if (include / "Python.h").is_file():
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Python's headers are missing ({include}/Python.h): install them (Debian: python{version}-dev)"


def toolchain_problems(
    standard: int = NEWEST_STANDARD, environ: Mapping[str, str] = os.environ, include: Path | None = None
) -> list[str]:
    """Return one line for each part of the tool chain that is missing; an empty list when all is there."""
    headers = include or Path(sysconfig.get_path("include"))
    found = (compiler_problem(environ, standard), make_problem(environ), headers_problem(headers))
    return [problem for problem in found if problem]


if __name__ == "__main__":
    missing = toolchain_problems()
    for line in missing:
        sys.stderr.write(f"set-up: {line}\n")
    sys.exit(2 if missing else 0)

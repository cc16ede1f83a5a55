"""Each missing part of the C++ tool chain is one line that says what to install."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradsieve_hvd.horovod_build import toolchain


def tool(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_this_machine_lacks_nothing():
    assert toolchain.toolchain_problems() == []


def test_no_compiler_and_no_make_are_two_lines(tmp_path):
    compiler, make = toolchain.toolchain_problems(environ={"PATH": str(tmp_path)})
    assert compiler.startswith("no C++ compiler (c++, g++ or clang++ not found): install g++")
    assert make.startswith("make not found: install it")


def test_a_compiler_named_by_cxx_that_does_not_exist_is_named(tmp_path):
    problem = toolchain.compiler_problem({"PATH": str(tmp_path), "CXX": "icpc -w"}, 17)
    assert problem is not None
    assert "(icpc -w not found)" in problem


def test_a_compiler_too_old_for_the_standard_is_named_with_the_standard(tmp_path):
    old = tool(tmp_path, "c++", "exit 1")
    problem = toolchain.compiler_problem({"PATH": str(tmp_path)}, 20)
    assert problem == f"the C++ compiler {old} cannot do C++20: set CXX to GCC >= 11 or Clang >= 14"


@pytest.mark.parametrize("standard", [17, 20])
def test_the_probe_of_each_standard_fails_one_standard_below(standard):
    compiler = shutil.which("c++")
    assert compiler is not None
    below = subprocess.run(
        [compiler, f"-std=c++{standard - 3}", "-x", "c++", "-fsyntax-only", "-"],
        input=toolchain._PROBES[standard], text=True, capture_output=True,
    )  # fmt: skip
    assert below.returncode != 0
    assert toolchain.compiles_standard(compiler, standard)


def test_missing_headers_name_the_package(tmp_path):
    problem = toolchain.headers_problem(tmp_path)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        problem
        == f"Python's headers are missing ({tmp_path}/Python.h): install them (Debian: python{version}-dev)"
    )


def test_the_file_runs_alone_before_anything_is_installed(tmp_path):
    command = [sys.executable, "-I", "-S", toolchain.__file__]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["set-up", "set-up"]

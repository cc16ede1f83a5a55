"""The build's environment is the one that the cache's key describes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gradsieve_hvd.horovod_build import compilation
from gradsieve_hvd.horovod_build.environment import Environment, Mpi, Nccl, Torch

SITE = Path("/env/lib/python3.11/site-packages")
CPU = Environment(
    "cp311-linux-x86_64", Path("/env"), SITE, Torch("2.15.0", SITE / "torch", None, 20),
    Mpi("Open MPI 5.0.11", Path("/env/bin/mpicxx"), Path("/env/lib")),
)  # fmt: skip
GPU = replace(
    CPU, cuda_home=Path("/cuda"), nccl=Nccl("2.30.7", Path("/nccl/include"), Path("/nccl/lib/libnccl.so.2"))
)


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("  [ 50%] Building CXX object gloo/CMakeFiles/gloo.dir/transport/tcp/pair.cc.o", 50),
        ("[100%] Built target pytorch", 100),
        ("  [  1%] Building CXX object", 1),
        ("warning: array[50%]", None),
        ("-- Configuring done", None),
    ],
)
def test_makes_percentage_is_read(line, percent):
    assert compilation.percent_done(line) == percent


def test_mpi_and_gloo_are_asked_for_and_other_frameworks_are_not():
    flags = compilation.build_flags(CPU)
    assert {name for name in flags if name.startswith("HOROVOD_WITH_")} == {
        "HOROVOD_WITH_PYTORCH", "HOROVOD_WITH_MPI", "HOROVOD_WITH_GLOO",
    }  # fmt: skip
    assert {"HOROVOD_WITHOUT_TENSORFLOW", "HOROVOD_WITHOUT_MXNET"} <= set(flags)
    assert "HOROVOD_GPU_OPERATIONS" not in flags


def test_nccl_exchanges_gpu_tensors_where_it_is_found():
    environ = compilation.build_environ(GPU, {"PATH": "/usr/bin"}, Path("/build/nccl"))
    assert environ["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environ["HOROVOD_NCCL_LIB"] == "/build/nccl"
    assert environ["HOROVOD_CUDA_HOME"] == environ["CUDA_HOME"] == "/cuda"


def test_the_users_running_settings_and_an_outer_make_do_not_reach_the_build():
    outer = {
        "PATH": "/usr/bin", "HOME": "/home/x", "HOROVOD_CPU_OPERATIONS": "gloo", "MAKELEVEL": "1",
        "MAKEFLAGS": " --jobserver-auth=3,4 -- PYTHON=python3.12", "PYTHONPATH": "/somewhere",
    }  # fmt: skip
    environ = compilation.build_environ(CPU, outer, Path("/build/nccl"))
    assert {"HOROVOD_CPU_OPERATIONS", "MAKELEVEL", "PYTHONPATH"}.isdisjoint(environ)
    assert environ["MAKEFLAGS"] == f"-j{compilation.jobs()}"
    assert environ["HOME"] == "/home/x"


def test_the_environments_own_tools_go_first():
    first, second, rest = compilation.build_environ(CPU, {"PATH": "/usr/bin"}, Path("/b"))["PATH"].split(":")
    assert (second, rest) == ("/env/bin", "/usr/bin")
    assert first.endswith("bin")


@pytest.mark.parametrize(("available", "most"), [(1, 1), (2047, 1), (7 * 1024, 3), (2**20, 2**19)])
def test_jobs_are_one_a_core_as_far_as_memory_goes_and_one_at_least(tmp_path, available, most):
    (tmp_path / "meminfo").write_text(f"MemFree: 5 kB\nMemAvailable:   {available << 10} kB\n")
    assert compilation.jobs(tmp_path / "meminfo") == min(most, len(os.sched_getaffinity(0)))


def test_the_linker_gets_a_name_that_it_looks_for(tmp_path):
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"nccl")
    assert GPU.nccl is not None
    compilation.link_nccl(replace(GPU.nccl, library=library), tmp_path / "links")
    assert (tmp_path / "links" / "libnccl.so").read_bytes() == b"nccl"

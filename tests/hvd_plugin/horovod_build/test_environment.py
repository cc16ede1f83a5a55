"""What Horovod is built against is found without importing it."""

import sys
from pathlib import Path

import pytest
import torch

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build import environment
from gradsieve_hvd.horovod_build.environment import Torch


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_running_environment_is_described():
    found = environment.detect()
    assert found.torch.version == torch.__version__
    assert found.torch.cuda == torch.version.cuda
    assert found.python.startswith(f"cp{sys.version_info.major}{sys.version_info.minor}-linux")
    assert any(found.mpi.library_folder.glob("libmpi*.so*"))


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        pytest.param(
            "#error C++20 or later compatible compiler is required to use ATen.", 20, id="torch 2.15"
        ),
        pytest.param(
            "#error C++17 or later compatible compiler is required to use ATen.", 17, id="torch 2.1"
        ),
        pytest.param(
            "#error C++14 or later compatible compiler is required to use ATen.", 17, id="torch 1.5"
        ),
        pytest.param("// nothing is said", 17, id="silent"),
    ],
)
def test_the_standard_is_what_the_headers_demand_and_17_at_least(tmp_path, header, standard):
    write(tmp_path / "include/ATen/ATen.h", header)
    assert environment.demanded_standard(tmp_path) == standard


def test_the_standard_of_a_torch_without_headers_is_17(tmp_path):
    assert environment.demanded_standard(tmp_path) == 17


def test_an_unsupported_python_is_named_with_the_supported_ones():
    with pytest.raises(BuildError, match=r"Python 3\.10 .* not supported.*3\.11, 3\.12, 3\.13"):
        environment.python_tag((3, 10))


def test_a_platform_other_than_linux_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BuildError, match="win32 is not supported"):
        environment.python_tag((3, 11))


def test_missing_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(BuildError, match="torch is not installed.*pip install torch"):
        environment.find_torch()


def test_missing_mpi_says_what_to_install(tmp_path):
    with pytest.raises(BuildError, match=r"mpicxx not found.*gradsieve\[hvd\]"):
        environment.find_mpi(tmp_path, {"PATH": str(tmp_path)})


def test_an_mpi_wrapper_without_a_library_is_refused(tmp_path):
    write(tmp_path / "mpicxx", "#!/bin/sh\necho /nowhere\n").chmod(0o755)
    with pytest.raises(BuildError, match="does not say where libmpi is"):
        environment.find_mpi(tmp_path, {"PATH": "/usr/bin:/bin"})


def test_the_environments_own_mpi_goes_before_the_paths(tmp_path):
    for name in ("own", "other"):
        folder = tmp_path / name
        write(folder / "libmpi.so.40")
        script = f"#!/bin/sh\ncase $1 in --showme:version) echo Open MPI {name};; *) echo {folder};; esac\n"
        write(folder / "mpicxx", script).chmod(0o755)
    found = environment.find_mpi(tmp_path / "own", {"PATH": f"{tmp_path / 'other'}:/usr/bin:/bin"})
    assert found.version == "Open MPI own"
    assert found.library_folder == tmp_path / "own"


def test_the_cpus_instruction_sets_are_read(tmp_path):
    cpuinfo = write(tmp_path / "cpuinfo", "processor : 0\nflags\t\t: fpu sse avx2 fma f16c\n")
    assert environment.find_cpu_features(cpuinfo) == "f16c fma"
    assert environment.find_cpu_features(tmp_path / "none") == ""


def test_several_missing_things_are_told_together(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: "/nowhere")
    with pytest.raises(BuildError) as caught:
        environment.detect({"PATH": "/nowhere"})
    assert len(str(caught.value).splitlines()) == 2


@pytest.fixture
def cuda_torch(tmp_path) -> Torch:
    return Torch("2.15.0+cu132", tmp_path / "site" / "torch", "13.2", 20)


def test_nccl_comes_from_torchs_own_wheel_where_a_toolkit_is(tmp_path, cuda_torch):
    write(tmp_path / "cuda/bin/nvcc")
    wheel = tmp_path / "site/nvidia/nccl"
    write(wheel / "include/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 7\n")
    write(wheel / "lib/libnccl.so.2")
    home = environment.find_cuda(cuda_torch, {"CUDA_HOME": str(tmp_path / "cuda")})
    nccl = environment.find_nccl(cuda_torch, home, {"HOROVOD_NCCL_HOME": str(wheel)})
    assert nccl == environment.Nccl("2.30.7", wheel / "include", wheel / "lib/libnccl.so.2")


def test_without_a_toolkit_there_is_neither_cuda_nor_nccl(tmp_path, cuda_torch):
    assert environment.find_cuda(cuda_torch, {"CUDA_HOME": str(tmp_path)}) is None
    assert environment.find_nccl(cuda_torch, None, {}) is None


def test_a_torch_for_cpus_is_built_without_cuda(tmp_path):
    write(tmp_path / "cuda/bin/nvcc")
    cpu = Torch("2.15.0", tmp_path, None, 20)
    assert environment.find_cuda(cpu, {"CUDA_HOME": str(tmp_path / "cuda")}) is None

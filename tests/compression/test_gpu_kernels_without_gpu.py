"""What can be known of the GPU kernels without a GPU: their laws hold in triton's interpreter, they compile.

The interpreter checks results and not whether triton's compiler takes a kernel; the compiler needs no GPU.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradsieve import kernels
from gradsieve.kernels.cpu import CpuSum
from gradsieve.kernels.reference import ReferenceSum

HERE = Path(__file__).parent
LAWS = ["test_gpu_kernels_agree.py", "test_gpu_program_order.py"]
ARGUMENTS = {
    "gradient": "*fp32",
    "scale": "fp32",
    **dict.fromkeys(("residual", "out", "numbers", "values", "out_values"), "*fp32"),
    **dict.fromkeys(
        ("elements", "upper", "lower", "magnitude_bits", "exponent", "per_group", "in_last"), "i32"
    ),
    "offsets": "*i16",
    **dict.fromkeys(("noted", "reached", "largest", "lowest"), "*i32"),
    **dict.fromkeys(("ends", "out_indices", "sums", "indices"), "*i64"),
}


@pytest.mark.timeout(1200)
def test_the_laws_hold_in_tritons_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(HERE / law for law in LAWS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed, 1 skipped", done.stdout)
    assert passed, done.stdout[-2_000:]
    assert int(passed[1]) > 35


def compiled(kernel: str, constants: dict[str, object], target: int, **arguments: str) -> str:
    """Return the PTX of a kernel for GPUs of a compute capability, assembled too."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gradsieve.kernels.gpu import groups, passes

    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("TRITON_INTERPRET is set: nothing can be compiled in this process")
    function = getattr(passes if hasattr(passes, kernel) else groups, kernel)
    types = {**ARGUMENTS, **arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(function, {name: types[name] for name in function.arg_names}, constants)
    done = triton.compile(source, target=GPUTarget("cuda", target, 32), options=passes.OPTIONS)
    assert done.asm["cubin"]
    return done.asm["ptx"]


BLOCKS = {"BLOCK": 1024, "ROOM": 64}
SUMMING = {"SUMMING": True, "TAKE": True, **BLOCKS}
KERNELS = [
    pytest.param("sum_and_note", SUMMING, {}, id="sum_and_note"),
    pytest.param("sum_and_note", SUMMING, {"gradient": "*bf16", "elements": "i64"}, id="bf16, many"),
    pytest.param("sum_and_note", SUMMING, {"gradient": "*fp16"}, id="fp16"),
    pytest.param("sum_and_note", {**SUMMING, "SUMMING": False, "TAKE": False}, {}, id="not summing"),
    pytest.param("count_reaching", BLOCKS, {}, id="count_reaching"),
    pytest.param("list_reaching", {"TAKE": True, **BLOCKS}, {}, id="list_reaching"),
    pytest.param("largest_bits", {"BLOCK": 1024}, {}, id="largest_bits"),
    pytest.param("fixed_point_sums", {"BLOCK": 1024}, {}, id="fixed_point_sums"),
    pytest.param(
        "group_top_k",
        {"SUMMING": True, "SIZE": 1024, "ROWS": 1, "COLUMNS": 1024},
        {"gradient": "*bf16"},
        id="a group each",
    ),
    pytest.param(
        "group_top_k", {"SUMMING": True, "SIZE": 100, "ROWS": 8, "COLUMNS": 128}, {}, id="groups of 100"
    ),
]


@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize(("kernel", "constants", "arguments"), KERNELS)
def test_a_kernel_compiles_to_code_that_rounds_every_step_and_keeps_denormals(
    kernel, constants, arguments, target
):
    ptx = compiled(kernel, constants, target, **arguments)
    assert "fma." not in ptx
    assert ".ftz" not in ptx
    assert "atom." not in ptx
    if constants.get("SUMMING"):
        assert "mul.rn.f32" in ptx
        assert "add.rn.f32" in ptx


def test_the_device_decides_the_kernel():
    pytest.importorskip("triton")
    from gradsieve.kernels.gpu import GpuSum

    assert kernels.kernel_for(torch.device("cpu")) is CpuSum
    assert kernels.kernel_for(torch.device("cuda", 1)) is GpuSum
    assert kernels.kernel_for(torch.device("meta")) is ReferenceSum


def test_a_cpu_does_not_wait_for_tritons_kernels_and_a_gpu_without_triton_gets_the_reference():
    program = """
import sys
import torch
from gradsieve import Compression, Decision, LayerCompressor, kernels
LayerCompressor(Compression.laplace(0.1), 100).select(torch.ones(100), Decision(0.1))
print("gradsieve.kernels.gpu" in sys.modules)
sys.modules["triton"] = None
print(kernels.kernel_for(torch.device("cuda")).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["False", "ReferenceSum"], done.stderr

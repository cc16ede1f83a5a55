"""What triton's interpreter can show and a GPU cannot: any order of programs, and places beyond 2^31.

`test_gpu_kernels_without_gpu.py` starts this file in a process of its own.
"""

import os

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs triton's interpreter; test_gpu_kernels_without_gpu.py runs it", allow_module_level=True
    )
pytest.importorskip("triton")
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gradsieve.kernels.gpu import GpuSum, groups, passes
from gradsieve.kernels.gpu.passes import BLOCK, ROOM
from gradsieve.kernels.reference import ReferenceSum

FAR = 1 << 22  # blocks of 1 024 elements: 2^32


def number_programs(monkeypatch, number):
    """Let programs be numbered ``number(index, programs)`` instead of as the interpreter starts them."""

    def program_id(builder, axis):
        numbered = number(builder.grid_idx[axis], builder.grid_dim[axis])
        return TensorHandle(np.array([numbered], np.int32), tl.int32)

    monkeypatch.setattr(InterpreterBuilder, "create_get_program_id", program_id)


def far(tensor: torch.Tensor, per_program: int) -> torch.Tensor:
    """Return a tensor whose memory seems to begin FAR programs' parts earlier."""

    class Far(torch.Tensor):
        def data_ptr(self) -> int:
            return super().data_ptr() - FAR * per_program * self.element_size()

    return tensor.as_subclass(Far)


def terms(elements: int) -> tuple[torch.Tensor, ...]:
    """Return gradient, residual and room for the sum; the second block reaches far more than it can note."""
    gradient, residual, out = torch.randn(3, elements, generator=torch.Generator().manual_seed(5))
    gradient[BLOCK : BLOCK + 300] += 10
    return gradient, residual, out


@pytest.mark.parametrize("order", ["as started", "last first"])
def test_results_do_not_depend_on_the_order_of_programs(order, monkeypatch):
    if order == "last first":
        number_programs(monkeypatch, lambda index, programs: programs - 1 - index)
    gradient, residual, out = terms(3000)
    reference = ReferenceSum.of(gradient, 1.0, residual, torch.empty(3000))
    gpu = GpuSum.of(gradient, 1.0, residual, out)
    pattern = 0x40400000  # of 3.0
    selected, expected = (
        source.reaching(pattern, likely=True).select(pattern) for source in (gpu, reference)
    )
    assert torch.equal(selected.indices, expected.indices)
    assert torch.equal(selected.values, expected.values)
    selected, expected = (source.group_top_k(100, 3, 3) for source in (gpu, reference))
    assert torch.equal(selected.indices, expected.indices)


def test_a_pass_counts_places_in_64_bits(monkeypatch):
    number_programs(monkeypatch, lambda index, programs: FAR + index)
    elements = 2500
    gradient, residual, out = terms(elements)
    offsets, values = torch.empty(3 * ROOM, dtype=torch.int16), torch.empty(3 * ROOM)
    noted, reached = torch.empty(2, 3, dtype=torch.int32)
    ends = FAR * BLOCK + elements
    pattern = 0x40400000  # of 3.0
    sized = {"BLOCK": BLOCK, "ROOM": ROOM}
    numbers, notes = far(out, BLOCK), (far(offsets, ROOM), far(values, ROOM), far(noted, 1), far(reached, 1))
    passes.sum_and_note[(3,)](
        *(far(gradient, BLOCK), 1.0, far(residual, BLOCK), numbers, ends, pattern, pattern, *notes),
        **sized,
        SUMMING=True,
        TAKE=False,
    )
    assert torch.equal(out, gradient + residual)
    expected = (out.abs() >= 3.0).nonzero().flatten()
    assert noted.tolist() == reached.tolist() == [int((expected // BLOCK == b).sum()) for b in range(3)]
    assert noted[0] <= ROOM < noted[1]
    places, listed = torch.empty(expected.numel(), dtype=torch.int64), torch.empty(expected.numel())
    passes.count_reaching[(3,)](numbers, ends, pattern, *notes[1:], **sized)
    passes.list_reaching[(3,)](
        *(numbers, ends, pattern, *notes, far(reached.cumsum(0), 1), places, listed), **sized, TAKE=False
    )
    assert torch.equal(places, expected + FAR * BLOCK)
    assert torch.equal(listed, out[expected])


def test_groups_count_places_in_64_bits(monkeypatch):
    number_programs(monkeypatch, lambda index, programs: FAR + index)
    gradient, residual, out = terms(2 * BLOCK)
    places, values = torch.empty(10, dtype=torch.int64), torch.empty(10)
    rows, columns, _ = groups.tile_of(BLOCK)
    groups.group_top_k[(2,)](
        *(far(gradient, BLOCK), 1.0, far(residual, BLOCK), far(out, BLOCK), (FAR + 2) * BLOCK, 5, 0),
        *(far(places, 5), far(values, 5), far(torch.empty(2, dtype=torch.int32), 1)),
        SUMMING=True,
        SIZE=BLOCK,
        ROWS=rows,
        COLUMNS=columns,
    )
    expected = ReferenceSum(gradient + residual).group_top_k(BLOCK, 5, 0)
    assert torch.equal(places, expected.indices + FAR * BLOCK)
    assert torch.equal(values, expected.values)

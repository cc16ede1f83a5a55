"""The GPU kernels give the reference's bits.

These laws need a CUDA device. Without one they hold in triton's interpreter, which
`test_gpu_kernels_without_gpu.py` starts in a process of its own.
"""

import functools
import os
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_laws import DENSITY, SCALE, WARM, agree, same_bits, steps
from sole_tensor import SoleTensor
from torch.utils._python_dispatch import TorchDispatchMode

import gradsieve
from gradsieve import (
    GroupTopKSelector,
    LaplaceSelector,
    LayeredSelector,
    SampledSelector,
    Selection,
    TopKSelector,
)
from gradsieve.kernels.cpu import CpuSum
from gradsieve.kernels.reference import ReferenceSum

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip(
        "needs a CUDA device; see test_gpu_kernels_without_gpu.py for these laws without one",
        allow_module_level=True,
    )
pytest.importorskip("triton")
from gradsieve.kernels.gpu import GpuSum  # noqa: E402 - only where triton is

pytestmark = [
    pytest.mark.gpu,
    # numpy, which interprets, remarks on sums that overflow or are no numbers; here that is meant.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# A program takes the interpreter some 10 ms: few examples, and no search for the smallest that fails.
EXAMPLES = 5 if INTERPRETED else 200
PHASES = [Phase.explicit, Phase.reuse, Phase.generate] + ([] if INTERPRETED else [Phase.shrink])
LAW = settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
RULES = [
    TopKSelector(),
    LaplaceSelector((0.8, 1.25)),
    LayeredSelector((0.8, 1.25)),
    *(GroupTopKSelector(size) for size in (100, 1, 1500)),
]
# Whole blocks of 1 024 elements, more and less, and too few for one.
STEPS = steps(st.one_of(st.integers(0, 40), st.integers(1020, 1030), st.integers(2040, 2060)))
PATTERN = st.integers(0, 0x7F800000)


def made(kernel, gradient, scale, residual):
    """Return an accumulated gradient, the GPU's on its device and the others' on the CPU."""
    device = DEVICE if kernel is GpuSum else torch.device("cpu")
    residual = residual.to(device)
    return kernel.of(gradient.to(device), scale, residual, torch.full_like(residual, float("nan")))


def here(selection: Selection) -> Selection:
    return Selection(selection.indices.cpu(), selection.values.cpu(), selection.threshold)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@LAW
@given(step=STEPS, scale=SCALE, density=DENSITY, warm=WARM)
def test_they_select_what_the_reference_selects(rule, step, scale, density, warm):
    gradient, residual = step
    reference, gpu = (made(kernel, gradient, scale, residual) for kernel in (ReferenceSum, GpuSum))
    assert agree(here(rule.select(gpu, density, warm)), rule.select(reference, density, warm))
    assert same_bits(gpu.tensor().cpu(), reference.tensor())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@LAW
@given(step=STEPS, scale=SCALE, warm=WARM, layout=st.sampled_from(["rows", "columns", "second", "expanded"]))
def test_gradients_of_every_type_and_layout_are_added_alike(dtype, step, scale, warm, layout):
    flat, residual = step
    residual = residual[: residual.numel() // 2 * 2]
    gradient = flat[: residual.numel()].to(dtype)
    gradient = {
        "rows": lambda: gradient.view(2, -1),
        "columns": lambda: gradient.view(2, -1).t(),
        "second": lambda: gradient.repeat_interleave(2)[::2],
        "expanded": lambda: gradient[: min(1, gradient.numel())].expand(residual.numel()),
    }[layout]()
    reference, gpu = (made(kernel, gradient, scale, residual) for kernel in (ReferenceSum, GpuSum))
    rule = LaplaceSelector((0.8, 1.25))
    assert agree(here(rule.select(gpu, 0.01, warm)), rule.select(reference, 0.01, warm))
    assert same_bits(gpu.tensor().cpu(), reference.tensor())


@settings(LAW, max_examples=3 * EXAMPLES)
@given(
    step=STEPS,
    patterns=st.lists(PATTERN, min_size=1, max_size=4),
    margin=st.sampled_from([0, 1 << 21, 1 << 30]),
    likely=st.booleans(),
    at_most=st.integers(0, 100),
)
def test_questions_after_the_first_are_answered_alike(step, patterns, margin, likely, at_most):
    reference, gpu = (made(kernel, step[0], 1.0, step[1]) for kernel in (ReferenceSum, GpuSum))
    for pattern in patterns:
        asked, expected = gpu.reaching(pattern, margin, likely=likely), reference.reaching(pattern)
        assert asked.count == expected.count
        assert asked.lowest() == expected.lowest()
        higher = pattern + 1
        assert asked.count_reaching(higher) == expected.count_reaching(higher)
        if expected.count:
            assert asked.nth_largest(1) == expected.nth_largest(1)
        assert agree(here(asked.select(pattern)), expected.select(pattern))
        if expected.count_reaching(higher) <= at_most:
            assert agree(here(asked.select(pattern, at_most)), expected.select(pattern, at_most))


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        *((rule, float("nan")) for rule in (*RULES, SampledSelector(0.01, (0.8, 1.25), 0))),
        (LaplaceSelector((0.8, 1.25)), float("inf")),
        (GroupTopKSelector(100), float("-inf")),
    ],
    ids=repr,
)
def test_what_is_not_finite_is_among_the_values(rule, bad):
    gradient = torch.randn(2100, generator=torch.Generator().manual_seed(1))
    gradient[1321] = bad
    reference, gpu = (made(kernel, gradient, 1.0, torch.zeros(2100)) for kernel in (ReferenceSum, GpuSum))
    selected, expected = rule.select(gpu, 0.01, 2.5), rule.select(reference, 0.01, 2.5)
    assert not selected.values.isfinite().all()
    assert torch.equal(selected.indices.cpu(), expected.indices)
    assert torch.equal(selected.values.cpu().nan_to_num(), expected.values.nan_to_num())


@LAW
@given(step=STEPS)
def test_the_mean_magnitude_is_the_same(step):
    numbers_N = step[0]
    if numbers_N.numel():
        assert GpuSum(numbers_N.to(DEVICE)).mean_magnitude() == ReferenceSum(numbers_N).mean_magnitude()


@pytest.mark.parametrize("rule", RULES[:4], ids=repr)
@LAW
@given(step=STEPS, density=DENSITY, warm=WARM)
def test_what_is_left_of_a_selection_is_the_same(rule, step, density, warm):
    left = []
    for kernel in (ReferenceSum, GpuSum):
        source = made(kernel, step[0], 1.0, step[1])
        selection = rule.select(source, density, warm)
        source.subtract_sent(selection)
        left.append(source.tensor().cpu())
    assert same_bits(*left)


@LAW
@given(step=STEPS, listed=PATTERN, selected=PATTERN)
def test_what_is_left_is_the_same_when_something_else_is_selected_than_was_likely(step, listed, selected):
    left = []
    for kernel in (ReferenceSum, GpuSum):
        source = made(kernel, step[0], 1.0, step[1])
        source.reaching(listed, likely=True)
        source.reaching(listed, likely=True)
        selection = source.reaching(selected).select(selected)
        source.subtract_sent(selection)
        left.append(source.tensor().cpu())
    assert same_bits(*left)


@pytest.mark.parametrize(
    "make",
    [
        gradsieve.Compression.topk,
        gradsieve.Compression.group_topk,
        gradsieve.Compression.laplace,
        gradsieve.Compression.sampled,
        functools.partial(gradsieve.Compression.laplace, value_dtype="float16"),
        functools.partial(gradsieve.Compression.layered, bounds=(0.001, 1.0)),
        functools.partial(gradsieve.Compression.laplace, momentum=gradsieve.MomentumCorrection()),
    ],
    ids=["topk", "group_topk", "laplace", "sampled", "float16", "layered", "momentum"],
)
def test_payloads_are_the_same_bytes_in_step_after_step(make, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    layers = {
        kernel: SoleTensor(make(density=0.01), 2500, device)
        for kernel, device in ((CpuSum, torch.device("cpu")), (GpuSum, DEVICE))
    }
    for step in range(4):
        gradient = torch.randn(2500, generator=generator)
        gradient[step * 300 : step * 300 + 200] *= 10  # blocks that list more than they have room for
        payloads = []
        for kernel, layer in layers.items():
            monkeypatch.setattr("gradsieve.kernels.kernel_for", lambda device, kernel=kernel: kernel)
            device = DEVICE if kernel is GpuSum else torch.device("cpu")
            payloads.append(layer.compress(gradient.to(device), step=step))
            (layer.rollback if step == 1 else layer.commit)()
        assert torch.equal(*payloads)
    left = [layer.state_dict()["feedback"]["residual"].cpu() for layer in layers.values()]
    assert same_bits(*left)


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_to_copy", "equal"):
            self.seen[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", [LaplaceSelector((0.5, 2.0)), GroupTopKSelector(100)], ids=repr)
def test_a_usual_step_waits_once_for_the_device(rule):
    gradient, residual = torch.randn(2, 2100, generator=torch.Generator().manual_seed(4))
    source = made(GpuSum, gradient, 1.0, residual)
    with Waits() as waits:
        selection = rule.select(source, 0.01, 3.6)
        source.subtract_sent(selection)
    assert waits.seen == {"_local_scalar_dense": 1}


@pytest.mark.skipif(INTERPRETED, reason="2 billion elements are too many for the interpreter")
def test_more_than_two_to_the_31_elements_are_selected_from():
    elements = 2**31 + 5000
    if torch.cuda.mem_get_info()[0] < 14 * elements:
        pytest.skip("needs 30 GB of free GPU memory")
    layer = SoleTensor(gradsieve.Compression.laplace(1e-6), elements, DEVICE)
    gradient = torch.zeros(elements, dtype=torch.bfloat16, device=DEVICE)
    places = torch.arange(0, elements, elements // 2000, device=DEVICE)
    gradient[places] = 2.0
    gradient[-1] = 3.0
    received = gradsieve.decode(layer.compress(gradient, step=0), elements)
    expected = torch.cat([places.cpu(), torch.tensor([elements - 1])])
    assert torch.equal(received.indices, expected)

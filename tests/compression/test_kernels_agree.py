"""Every kernel gives the reference's bits, whatever the numbers, the length, the number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_laws import DENSITY, SCALE, WARM, agree, same_bits, steps, using_threads

from gradsieve import GroupTopKSelector, LaplaceSelector, TopKSelector
from gradsieve.kernels.cpu import CpuSum
from gradsieve.kernels.magnitude import bits_of
from gradsieve.kernels.reference import ReferenceSum

RULES = [
    TopKSelector(),
    LaplaceSelector((0.8, 1.25)),
    *(GroupTopKSelector(size) for size in (1, 7, 32, 64, 100, 1024)),
]
THREADS = st.sampled_from([1, 2, 3])
# A few of their own, so that one is asked again.
PATTERN = st.one_of(st.integers(0, 0x7F800000), st.sampled_from([1, 0x3F000000, 0x3F800000, 0x40000000]))
STEPS = steps(st.one_of(st.integers(0, 130), st.integers(1000, 4200)))


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=60)
@given(threads=THREADS, step=STEPS, scale=SCALE, density=DENSITY, warm=WARM)
def test_cpu_loops_select_what_the_reference_selects(rule, threads, step, scale, density, warm):
    gradient, residual = step
    outs = torch.empty_like(residual), torch.empty_like(residual)
    reference, cpu = (
        kernel.of(gradient, scale, residual, out)
        for kernel, out in zip((ReferenceSum, CpuSum), outs, strict=True)
    )
    with using_threads(threads):
        assert agree(rule.select(cpu, density, warm), rule.select(reference, density, warm))
        assert same_bits(cpu.tensor(), reference.tensor())


@settings(max_examples=60)
@given(
    threads=THREADS,
    step=STEPS,
    patterns=st.lists(PATTERN, min_size=1, max_size=6),
    margin=st.sampled_from([0, 1 << 21, 1 << 30]),
    likely=st.booleans(),
)
def test_questions_after_the_first_are_answered_alike(threads, step, patterns, margin, likely):
    gradient, residual = step
    reference = ReferenceSum.of(gradient, 1.0, residual, torch.empty_like(residual))
    cpu = CpuSum.of(gradient, 1.0, residual, torch.empty_like(residual))
    with using_threads(threads):
        for pattern in patterns:
            asked, expected = cpu.reaching(pattern, margin, likely=likely), reference.reaching(pattern)
            assert asked.count == expected.count
            assert asked.lowest() == expected.lowest()
            if expected.count:
                assert asked.nth_largest(1) == expected.nth_largest(1)
            assert agree(asked.select(pattern), expected.select(pattern))


@pytest.mark.parametrize("kernel", [CpuSum, ReferenceSum])
def test_a_question_asked_twice_has_one_answer(kernel):
    gradient = torch.tensor([0.9, 0.1, 2.0, 0.95, 0.0])  # 0.9 and 0.95 are near when 1 is asked for
    source = kernel.of(gradient, 1.0, torch.zeros(5), torch.empty(5))
    assert source.reaching(bits_of(1.0), margin=1 << 21).count == 1
    for _ in range(3):
        assert source.reaching(1).select(1).indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_is_not_finite_is_among_the_values_of_every_kernel(rule, bad):
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    gradient[4321] = bad
    for kernel in (CpuSum, ReferenceSum):
        source = kernel.of(gradient, 1.0, torch.zeros(5000), torch.empty(5000))
        assert not rule.select(source, 0.01, 2.5).values.isfinite().all()


@settings(max_examples=60)
@given(threads=THREADS, step=STEPS)
def test_the_mean_magnitude_is_the_same_everywhere(threads, step):
    numbers_N = step[0]
    with using_threads(threads):
        assert (
            not numbers_N.numel()
            or CpuSum(numbers_N).mean_magnitude() == ReferenceSum(numbers_N).mean_magnitude()
        )


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=60)
@given(threads=THREADS, step=STEPS, density=DENSITY, warm=WARM)
def test_what_is_left_of_a_selection_is_the_same_everywhere(rule, threads, step, density, warm):
    gradient, residual = step
    left = []
    for kernel in (ReferenceSum, CpuSum):
        source = kernel.of(gradient, 1.0, residual, torch.empty_like(residual))
        with using_threads(threads):
            selection = rule.select(source, density, warm)
            source.subtract_sent(selection)
        left.append(source.tensor())
    assert same_bits(*left)

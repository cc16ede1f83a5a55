"""Number formats: rounding is to nearest, packing loses nothing, and senders know what receivers see."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import Selection, decode, encode, sent_values

FLOATS = ["float32", "float16", "bfloat16"]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def patterns(values: torch.Tensor) -> torch.Tensor:
    """The bits: negative zeros differ from zeros."""
    return values.view(torch.int32)


@settings(max_examples=100)
@given(values=st.lists(FINITE, max_size=40), value_dtype=st.sampled_from(FLOATS))
def test_values_are_rounded_to_nearest_and_stay_finite(values, value_dtype):
    given_ = torch.tensor(values, dtype=torch.float32)
    before = given_.clone()
    sent = sent_values(given_, value_dtype)
    kind = getattr(torch, value_dtype)
    largest = torch.finfo(kind).max
    assert sent.dtype == torch.float32
    assert torch.equal(patterns(sent), patterns(given_.clamp(-largest, largest).to(kind).float()))
    assert torch.equal(patterns(given_), patterns(before))


@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("step", [99_991, 1 << 11])
def test_rounding_is_that_of_torch_all_over_the_range(value_dtype, step):
    numbers = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32).view(torch.float32)
    numbers = numbers[torch.isfinite(numbers)]
    kind = getattr(torch, value_dtype)
    expected = numbers.clamp(-torch.finfo(kind).max, torch.finfo(kind).max).to(kind).float()
    assert torch.equal(patterns(sent_values(numbers, value_dtype)), patterns(expected))


@settings(max_examples=100)
@given(
    values=st.lists(FINITE, min_size=1, max_size=40),
    bits=st.sampled_from([8, 4, 2]),
    repeat=st.integers(1, 20),
)
def test_levels_are_the_nearest_between_the_smallest_and_the_largest_magnitude(values, bits, repeat):
    given_ = torch.tensor(values * repeat, dtype=torch.float32)
    sent = sent_values(given_, f"int{bits}")
    assert torch.equal(torch.signbit(sent), torch.signbit(given_))
    for before, after in zip(given_.split(256), sent.split(256), strict=True):
        magnitudes, levels = before.double().abs(), after.double().abs()
        spacing = float(magnitudes.max() - magnitudes.min()) / (2 ** (bits - 1) - 1)
        rounding = float(magnitudes.max()) * 2**-23 + 2**-149
        assert float((levels - magnitudes).abs().max()) <= spacing / 2 + rounding
        assert {float(magnitudes.min()), float(magnitudes.max())} <= set(levels.tolist())


@pytest.mark.parametrize("value_dtype", ["int8", "int4", "int2"])
@pytest.mark.parametrize(
    "values",
    [[], [0.0], [-0.0], [-3.5], [2.0, 2.0, -2.0], [0.0] * 300, [0.0, -0.0, 1e-45], [-3.4e38, 1e-45, 3.4e38]],
    ids=["none", "zero", "-zero", "one", "equal", "zeros", "denormal", "widest"],
)
def test_groups_with_nothing_to_measure_are_exact(value_dtype, values):
    given_ = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(patterns(sent_values(given_, value_dtype)), patterns(given_))


EXPONENTS = st.sampled_from([1.0, 1e-3, 1e-20, 1e-39, 1e-44, 1e30])


@settings(max_examples=100)
@given(
    scales=st.lists(EXPONENTS, min_size=1, max_size=3),
    specials=st.lists(st.sampled_from([0.0, -0.0, 1e-45, -1.1e-38, 3.4028234663852886e38]), max_size=4),
    count=st.integers(30, 400),
    value_dtype=st.sampled_from(FLOATS),
)
def test_packing_exponents_loses_nothing_of_zeros_denormals_and_signs(scales, specials, count, value_dtype):
    generator = torch.Generator().manual_seed(count)
    values = (1 + torch.rand(count, generator=generator)) * torch.tensor(scales).repeat(count)[:count]
    values[::3] *= -1
    values[: len(specials)] = torch.tensor(specials)
    decoded = decode(
        encode(Selection(torch.arange(count) * 9, values, 0.0), 9 * count, value_dtype), 9 * count
    )
    assert torch.equal(patterns(decoded.values), patterns(sent_values(values, value_dtype)))

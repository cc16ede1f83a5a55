"""The density decays exponentially from its start to the target, and stays there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve import Compression, ConfigurationError, DensityWarmup


def test_the_density_is_constant_without_a_warm_up():
    config = Compression.topk(0.02)
    assert [config.density_at(step) for step in (0, 1, 10**9)] == [0.02] * 3


def test_half_way_is_the_geometric_mean():
    config = Compression.topk(0.01, warmup=DensityWarmup(start=0.25, steps=100))
    assert config.density_at(0) == 0.25
    assert config.density_at(50) == pytest.approx(0.05)
    assert config.density_at(100) == config.density_at(10**9) == 0.01


@given(
    start=st.floats(0.01, 1),
    target=st.floats(1e-6, 0.01),
    steps=st.integers(1, 1000),
    step=st.integers(0, 2000),
)
def test_the_density_never_rises_and_never_leaves_its_ends(start, target, steps, step):
    warmup = DensityWarmup(start=start, steps=steps)
    now, then = warmup.density_at(step, target), warmup.density_at(step + 1, target)
    assert start * (1 + 1e-12) >= now >= then * (1 - 1e-12)
    assert then >= target * (1 - 1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps=0 must be an integer of at least 1"),
        ({"steps": 1.5}, r"steps=1\.5"),
        ({"steps": 3, "start": 0}, r"start=0 must be a number in \(0, 1\]"),
        ({"steps": 3, "start": None}, "start=None"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        DensityWarmup(**settings)

"""The density decays exponentially from its start to the target, and stays there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve import ConfigurationError, DensityWarmup


def test_half_way_is_the_geometric_mean():
    warmup = DensityWarmup(start=0.25, steps=100)
    assert warmup.density_at(0, 0.01) == 0.25
    assert warmup.density_at(50, 0.01) == pytest.approx(0.05)
    assert warmup.density_at(100, 0.01) == warmup.density_at(10**9, 0.01) == 0.01


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

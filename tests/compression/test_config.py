"""Configurations are frozen, checked, printable and comparable across ranks."""

import dataclasses
import json

import pytest

from gradsieve import (
    Compression,
    CompressionConfig,
    ConfigurationError,
    DensityWarmup,
    GroupTopKConfig,
    LaplaceConfig,
    TopKConfig,
)


@pytest.mark.parametrize(
    ("make", "kind", "algorithm"),
    [
        (Compression.topk, TopKConfig, "topk"),
        (Compression.group_topk, GroupTopKConfig, "group_topk"),
        (Compression.laplace, LaplaceConfig, "laplace"),
    ],
)
def test_each_maker_gives_its_rule_with_the_documented_defaults(make, kind, algorithm):
    config = make()
    assert type(config) is kind
    assert isinstance(config, CompressionConfig)
    assert config == kind()
    assert (config.algorithm, config.density, config.min_elements) == (algorithm, 0.01, 10_000)
    assert (config.value_dtype, config.warmup, config.error_feedback) == ("float32", None, True)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Compression.topk, {"density": 0}, r"Compression\.topk: density=0 is not allowed.*\(0, 1\]"),
        (Compression.topk, {"density": 1.5}, r"density=1\.5"),
        (Compression.topk, {"density": float("nan")}, "density=nan"),
        (Compression.topk, {"density": "0.01"}, r"density='0\.01'"),
        (Compression.topk, {"density": True}, "density=True"),
        (Compression.topk, {"min_elements": -1}, "min_elements=-1 .* at least 0"),
        (Compression.topk, {"min_elements": 1e4}, r"min_elements=10000\.0"),
        (Compression.topk, {"value_dtype": "fp16"}, "value_dtype='fp16'.*float32, float16, bfloat16"),
        (Compression.topk, {"warmup": 5}, "warmup=5 .* DensityWarmup or None"),
        (Compression.topk, {"density": 0.5, "warmup": DensityWarmup(steps=9)}, r"starts at 0\.5"),
        (Compression.topk, {"error_feedback": 1}, "error_feedback=1 .* True or False"),
        (Compression.group_topk, {"group_size": 0}, r"Compression\.group_topk: group_size=0 .* at least 1"),
        (Compression.group_topk, {"density": 2}, "density=2"),
        (Compression.laplace, {"band": (1.1, 1.2)}, r"Compression\.laplace: band=\(1\.1, 1\.2\)"),
        (Compression.laplace, {"band": (0.8, float("inf"))}, "band="),
        (Compression.laplace, {"band": [0.8, 1.25]}, "band="),
        (Compression.laplace, {"band": (0.0, 1.25)}, "band="),
        (Compression.laplace, {"density": -1}, "density=-1"),
    ],
)
def test_a_wrong_setting_is_refused_with_field_value_and_what_is_allowed(make, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Compression.topk().density = 0.5  # type: ignore[misc]


def test_a_configuration_prints_as_the_call_that_makes_it():
    config = Compression.laplace(0.02, warmup=DensityWarmup(steps=10))
    assert eval(repr(config), {"LaplaceConfig": LaplaceConfig, "DensityWarmup": DensityWarmup}) == config


def test_a_description_is_the_same_after_a_trip_through_json():
    config = Compression.laplace(
        0.02, band=(0.9, 1.1), value_dtype="bfloat16", warmup=DensityWarmup(steps=10)
    )
    description = config.describe()
    assert json.loads(json.dumps(description)) == description
    assert description == {
        "algorithm": "laplace",
        "density": 0.02,
        "min_elements": 10_000,
        "value_dtype": "bfloat16",
        "warmup": {"start": 0.25, "steps": 10},
        "error_feedback": True,
        "band": [0.9, 1.1],
    }


def test_the_base_makes_no_configuration():
    with pytest.raises(TypeError, match="abstract"):
        CompressionConfig()  # type: ignore[abstract]

"""Configurations are frozen, checked, printable and comparable across ranks."""

import dataclasses
import json
import warnings

import pytest

from gradsieve import (
    Compression,
    CompressionConfig,
    ConfigurationError,
    DensityWarmup,
    GroupTopKConfig,
    HighDensityWarning,
    ImportanceConfig,
    LaplaceConfig,
    LayeredConfig,
    LossRecorder,
    MomentumCorrection,
    SampledConfig,
    TopKConfig,
)


@pytest.mark.parametrize(
    ("make", "kind", "algorithm"),
    [
        (Compression.topk, TopKConfig, "topk"),
        (Compression.group_topk, GroupTopKConfig, "group_topk"),
        (Compression.laplace, LaplaceConfig, "laplace"),
        (Compression.sampled, SampledConfig, "sampled"),
        (Compression.layered, LayeredConfig, "layered"),
        (Compression.importance, ImportanceConfig, "importance"),
    ],
)
def test_each_maker_gives_its_rule_with_the_documented_defaults(make, kind, algorithm):
    config = make()
    assert type(config) is kind
    assert isinstance(config, CompressionConfig)
    assert config == kind()
    assert (config.algorithm, config.density, config.min_elements) == (algorithm, 0.01, 10_000)
    assert (config.value_dtype, config.warmup, config.error_feedback) == ("float32", None, True)
    assert (config.momentum, config.clip_norm) == (None, None)


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
        (Compression.topk, {"momentum": 0.9}, r"momentum=0\.9 .* MomentumCorrection or None"),
        (Compression.topk, {"clip_norm": 0}, "clip_norm=0 .* positive number or None"),
        (Compression.topk, {"clip_norm": float("inf")}, "clip_norm=inf"),
        (Compression.sampled, {"sample": 0}, r"Compression\.sampled: sample=0 .*\(0, 1\]"),
        (Compression.sampled, {"band": (0.8,)}, "band="),
        (Compression.sampled, {"seed": -1}, "seed=-1 .* at least 0"),
        (
            Compression.layered,
            {"density": 0.2},
            r"Compression\.layered: bounds=\(0\.001, 0\.1\).*0\.2 \(density\)",
        ),
        (Compression.layered, {"bounds": (0.02, 0.1)}, r"bounds=\(0\.02, 0\.1\)"),
        (Compression.layered, {"bounds": (0, 0.1)}, "bounds="),
        (Compression.layered, {"band": (2, 3)}, "band="),
        (Compression.layered, {"layer_min_elements": {"a": -1}}, "layer_min_elements=.*name's pattern"),
        (Compression.layered, {"layer_min_elements": {1: 2}}, "layer_min_elements="),
        (Compression.layered, {"reanchor_steps": 0}, "reanchor_steps=0"),
        (Compression.layered, {"adapt_steps": 0}, "adapt_steps=0"),
        (Compression.layered, {"dead_band": 1}, r"dead_band=1 .* \[0, 1\)"),
        (Compression.importance, {"bounds": (0.1, 0.2)}, r"Compression\.importance: bounds="),
        (Compression.importance, {"loss_power": -1}, "loss_power=-1 .* at least 0"),
        (Compression.importance, {"network_power": float("nan")}, "network_power=nan"),
        (Compression.importance, {"period": 0}, "period=0"),
        (Compression.importance, {"band": None}, "band=None"),
        (Compression.importance, {"recorder": None}, "recorder=None .* a LossRecorder"),
    ],
)
def test_a_wrong_setting_is_refused_with_field_value_and_what_is_allowed(make, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("make", "setting", "said"),
    [
        (
            Compression.topk,
            "densty",
            r"Compression\.topk\(\) has no setting 'densty'; did you mean 'density'\?",
        ),
        (Compression.layered, "layer_min_element", "did you mean 'layer_min_elements' or 'min_elements'"),
        (
            Compression.laplace,
            "group_size",
            r"no setting 'group_size'\. It takes density, band, min_elements,",
        ),
    ],
)
def test_a_setting_that_a_maker_does_not_have_is_refused_with_those_that_come_nearest(make, setting, said):
    with pytest.raises(TypeError, match=said):
        make(**{setting: 1})


@pytest.mark.parametrize("density", [1, 0.5])
def test_a_density_that_may_be_meant_as_a_percentage_is_warned_of_where_it_was_written(density):
    with pytest.warns(
        HighDensityWarning, match=r"1 % is 0\.01.*category=gradsieve\.HighDensityWarning"
    ) as seen:
        Compression.laplace(density)
    assert seen[0].filename == __file__


def test_a_density_below_a_half_is_nothing_to_warn_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Compression.topk(0.499)


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
        "residual_dtype": "float32",
        "momentum": None,
        "clip_norm": None,
        "band": [0.9, 1.1],
    }


def test_a_description_holds_nested_settings_as_plain_values():
    config = Compression.layered(
        momentum=MomentumCorrection(momentum=0.8), layer_min_elements={"head.*": 0, "*": 500}
    )
    description = config.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["momentum"] == {
        "momentum": 0.8,
        "masking": True,
        "allow_double_momentum": False,
    }
    assert description["layer_min_elements"] == [["head.*", 0], ["*", 500]]


def test_a_recorder_belongs_to_a_process_and_is_not_compared():
    config = Compression.importance(recorder=LossRecorder())
    assert config == Compression.importance()
    assert config.describe() == Compression.importance().describe()
    assert "recorder" not in config.describe()


def test_the_size_threshold_decides_what_is_compressed_and_a_layers_own_comes_first():
    assert [Compression.topk().compresses("fc", n) for n in (9_999, 10_000)] == [False, True]
    config = Compression.layered(layer_min_elements={"head.*": 0, "*.bias": 10**9, "head.bias": 0})
    named = {"head.weight": 5, "body.bias": 10**8, "head.bias": 5, "body.weight": 9_999}
    assert [config.compresses(*item) for item in named.items()] == [True, False, True, False]
    assert config.compresses("body.weight", 10_000)


def test_the_base_makes_no_configuration():
    with pytest.raises(TypeError, match="abstract"):
        CompressionConfig()  # type: ignore[abstract]

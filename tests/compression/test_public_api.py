"""The public API changes only on purpose."""

import re
import subprocess
import sys
from pathlib import Path

import gradsieve

EXPORTS = [
    "BoundedPolicy",
    "BuildError",
    "Compression",
    "CompressionConfig",
    "ConfigurationError",
    "Decision",
    "DensityPlan",
    "DensityWarmup",
    "ErrorFeedback",
    "ExchangeError",
    "FixedPolicy",
    "GradsieveError",
    "GroupTopKConfig",
    "GroupTopKSelector",
    "HighDensityWarning",
    "ImportanceConfig",
    "ImportancePolicy",
    "LaplaceConfig",
    "LaplaceSelector",
    "LaunchError",
    "LayerCompressor",
    "LayerPolicy",
    "LayeredConfig",
    "LayeredPolicy",
    "LayeredSelector",
    "LinearScalingLR",
    "LossRecorder",
    "MomentumCorrection",
    "NoResidual",
    "NonFiniteGradient",
    "Outcome",
    "Payload",
    "PayloadError",
    "Policy",
    "RankMismatch",
    "Refusal",
    "Residual",
    "SampledConfig",
    "SampledSelector",
    "Selection",
    "Selector",
    "SparseGradient",
    "StateError",
    "Steering",
    "TopKConfig",
    "TopKSelector",
    "Velocity",
    "WarmupPolicy",
    "cross_entropy",
    "decode",
    "encode",
    "encode_refusal",
    "encode_rounded",
    "sent_values",
    "split",
]


def test_the_exports_are_these_sorted_and_present():
    assert gradsieve.__all__ == EXPORTS == sorted(EXPORTS)
    assert all(hasattr(gradsieve, name) for name in EXPORTS)


def test_the_version_is_that_of_the_distribution():
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    assert declared is not None
    assert gradsieve.__version__ == declared.group(1)


def test_the_package_says_that_it_is_typed():
    assert (Path(gradsieve.__file__).parent / "py.typed").exists()


def test_importing_the_library_imports_neither_horovod_nor_mpi():
    program = (
        "import sys, gradsieve; print(sorted({'horovod', 'mpi4py', 'gradsieve_hvd'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout.strip() == "[]"

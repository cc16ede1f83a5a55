"""gradsieve: send only the part of every gradient that matters.

Names are imported when they are first used: the command line and the launcher need the errors, and should not
wait seconds for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradsieve.codec import (
        Payload,
        Refusal,
        decode,
        encode,
        encode_refusal,
        encode_rounded,
        sent_values,
        split,
    )
    from gradsieve.config import (
        Compression,
        CompressionConfig,
        GroupTopKConfig,
        ImportanceConfig,
        LaplaceConfig,
        LayeredConfig,
        SampledConfig,
        TopKConfig,
    )
    from gradsieve.errors import (
        BuildError,
        ConfigurationError,
        ExchangeError,
        GradsieveError,
        HighDensityWarning,
        LaunchError,
        NonFiniteGradient,
        PayloadError,
        RankMismatch,
        StateError,
    )
    from gradsieve.layer import LayerCompressor
    from gradsieve.learning_rate import LinearScalingLR
    from gradsieve.losses import LossRecorder, cross_entropy
    from gradsieve.momentum import MomentumCorrection, Velocity
    from gradsieve.policies import (
        BoundedPolicy,
        Decision,
        DensityPlan,
        FixedPolicy,
        ImportancePolicy,
        LayeredPolicy,
        LayerPolicy,
        Outcome,
        Policy,
        Steering,
        WarmupPolicy,
    )
    from gradsieve.residual import ErrorFeedback, NoResidual, Residual
    from gradsieve.schedule import DensityWarmup
    from gradsieve.selection import Selection, Selector
    from gradsieve.selectors import (
        GroupTopKSelector,
        LaplaceSelector,
        LayeredSelector,
        SampledSelector,
        TopKSelector,
    )
    from gradsieve.sparse_gradient import SparseGradient

__version__ = "0.1.0"

_HOMES = {
    "codec": (
        "Payload",
        "Refusal",
        "decode",
        "encode",
        "encode_refusal",
        "encode_rounded",
        "sent_values",
        "split",
    ),
    "config": (
        "Compression",
        "CompressionConfig",
        "GroupTopKConfig",
        "ImportanceConfig",
        "LaplaceConfig",
        "LayeredConfig",
        "SampledConfig",
        "TopKConfig",
    ),
    "errors": (
        "BuildError",
        "ConfigurationError",
        "ExchangeError",
        "GradsieveError",
        "HighDensityWarning",
        "LaunchError",
        "NonFiniteGradient",
        "PayloadError",
        "RankMismatch",
        "StateError",
    ),
    "layer": ("LayerCompressor",),
    "learning_rate": ("LinearScalingLR",),
    "losses": (
        "LossRecorder",
        "cross_entropy",
    ),
    "momentum": (
        "MomentumCorrection",
        "Velocity",
    ),
    "policies": (
        "BoundedPolicy",
        "Decision",
        "DensityPlan",
        "FixedPolicy",
        "ImportancePolicy",
        "LayerPolicy",
        "LayeredPolicy",
        "Outcome",
        "Policy",
        "Steering",
        "WarmupPolicy",
    ),
    "residual": (
        "ErrorFeedback",
        "NoResidual",
        "Residual",
    ),
    "schedule": ("DensityWarmup",),
    "selection": (
        "Selection",
        "Selector",
    ),
    "selectors": (
        "GroupTopKSelector",
        "LaplaceSelector",
        "LayeredSelector",
        "SampledSelector",
        "TopKSelector",
    ),
    "sparse_gradient": ("SparseGradient",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
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


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

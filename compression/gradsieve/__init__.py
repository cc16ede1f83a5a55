"""gradsieve: send only the part of every gradient that matters."""

from gradsieve.codec import Payload, Refusal, decode, encode, encode_refusal, sent_values, split
from gradsieve.config import Compression, CompressionConfig, GroupTopKConfig, LaplaceConfig, TopKConfig
from gradsieve.errors import (
    BuildError,
    ConfigurationError,
    ExchangeError,
    GradsieveError,
    LaunchError,
    NonFiniteGradient,
    PayloadError,
    RankMismatch,
)
from gradsieve.layer import LayerCompressor
from gradsieve.residual import ErrorFeedback, NoResidual, Residual
from gradsieve.schedule import DensityWarmup
from gradsieve.selection import Selection, Selector
from gradsieve.selectors import GroupTopKSelector, LaplaceSelector, TopKSelector

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "Compression",
    "CompressionConfig",
    "ConfigurationError",
    "DensityWarmup",
    "ErrorFeedback",
    "ExchangeError",
    "GradsieveError",
    "GroupTopKConfig",
    "GroupTopKSelector",
    "LaplaceConfig",
    "LaplaceSelector",
    "LaunchError",
    "LayerCompressor",
    "NoResidual",
    "NonFiniteGradient",
    "Payload",
    "PayloadError",
    "RankMismatch",
    "Refusal",
    "Residual",
    "Selection",
    "Selector",
    "TopKConfig",
    "TopKSelector",
    "decode",
    "encode",
    "encode_refusal",
    "sent_values",
    "split",
]

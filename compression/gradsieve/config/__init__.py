"""How much is sent, and by which rule: frozen settings, checked when they are made.

A configuration holds no state and may serve any number of optimizers; thresholds, residuals and policies
belong to the optimizer that uses it.
"""

from gradsieve.config.adaptive import ImportanceConfig, LayeredConfig
from gradsieve.config.base import CompressionConfig
from gradsieve.config.factories import Compression
from gradsieve.config.fixed import GroupTopKConfig, LaplaceConfig, SampledConfig, TopKConfig
from gradsieve.config.registry import ALGORITHMS, Algorithm, register

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Compression",
    "CompressionConfig",
    "GroupTopKConfig",
    "ImportanceConfig",
    "LaplaceConfig",
    "LayeredConfig",
    "SampledConfig",
    "TopKConfig",
    "register",
]

"""Data-parallel training of several ranks in one process: real models and compression, no network."""

from .ranks import SimulatedRank
from .training import Step, training

__all__ = ["SimulatedRank", "Step", "training"]

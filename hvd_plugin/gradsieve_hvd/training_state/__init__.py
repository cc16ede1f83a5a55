"""Commits of a training in memory and on storage, and going on from the newest that the ranks share."""

from gradsieve_hvd.training_state.state import TrainingState

__all__ = ["TrainingState"]

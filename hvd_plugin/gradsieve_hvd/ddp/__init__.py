"""The third front door: a communication hook for PyTorch's DistributedDataParallel."""

from .hook import ddp_hook
from .state import DdpState

__all__ = ["DdpState", "ddp_hook"]

"""Which samples a rank trains on, when ranks' batches may differ in size."""

from .balance import Balance
from .batch_counter import BatchCounter
from .dealing import Dealing, apportioned
from .dynamic_sampler import DynamicSampler

__all__ = ["Balance", "BatchCounter", "Dealing", "DynamicSampler", "apportioned"]

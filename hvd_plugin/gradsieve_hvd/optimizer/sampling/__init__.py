"""Which samples a rank trains on, when ranks' batches may differ in size."""

from .balance import Balance
from .batch_counter import BatchCounter
from .dealing import Dealing, apportioned
from .dynamic_sampler import DynamicSampler
from .served_batches import ServedBatches

__all__ = ["Balance", "BatchCounter", "Dealing", "DynamicSampler", "ServedBatches", "apportioned"]

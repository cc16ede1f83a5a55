"""``mode="bsp"``, ``"asp"``, ``"ssp"``, ``"dssp"``, ``"dasp"``: a parameter server in the ranks makes the
updates.
"""

from .mode import SERVED
from .training import ServedTraining

__all__ = ["SERVED", "ServedTraining"]

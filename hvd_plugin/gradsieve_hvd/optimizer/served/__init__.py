"""``mode="bsp"``, ``"asp"``, ``"ssp"``, ``"dssp"``, ``"dasp"``: a parameter server in the ranks makes the
updates.
"""

from .mode import SERVED

__all__ = ["SERVED"]

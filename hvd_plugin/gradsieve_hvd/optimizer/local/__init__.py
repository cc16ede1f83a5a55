"""``mode="local"``: every rank takes steps by itself, and now and then all exchange what became of them."""

from .checkpoint import LocalMemory
from .mode import local
from .rounds import LocalRounds

__all__ = ["LocalMemory", "LocalRounds", "local"]

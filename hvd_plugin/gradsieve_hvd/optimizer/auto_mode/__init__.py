"""``mode="auto"``: a training that changes between modes while it runs."""

from .checkpoint import AutoMemory
from .mode import auto
from .mode_changes import ModeChanges

__all__ = ["AutoMemory", "ModeChanges", "auto"]

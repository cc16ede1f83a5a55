"""How often Horovod's background thread looks for work, in Horovods that `gradsieve build-horovod` made."""

from __future__ import annotations

import ctypes
import os
import sys

_VARIABLE = "HOROVOD_CYCLE_TIME"


def can_be_slowed() -> bool:
    """Whether `look_at_most_every` does anything: Horovod runs here, it can, and the user has set no time."""
    hvd = sys.modules.get("horovod.torch")
    return (
        hvd is not None
        and bool(hvd.is_initialized())
        and _VARIABLE not in os.environ
        and hasattr(_library(), "horovod_set_shortest_cycle")
    )


def look_at_most_every(milliseconds: float) -> None:
    """Have this process's thread look so often at the most; 0 for as often as it does by itself.

    Whatever goes through Horovod then waits that long at the most before it is begun. Ranks look together:
    the longest time of any rank is that of all.
    """
    set_shortest = _library().horovod_set_shortest_cycle
    set_shortest.argtypes, set_shortest.restype = [ctypes.c_double], None
    set_shortest(milliseconds)


def _library() -> ctypes.CDLL:
    from horovod.torch import mpi_ops

    library: ctypes.CDLL = mpi_ops._basics.MPI_LIB_CTYPES  # noqa: SLF001 - no public name
    return library

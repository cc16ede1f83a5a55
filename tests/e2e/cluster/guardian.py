"""A process that outlives the owner of a cluster just long enough to remove the cluster.

    python -m cluster.guardian SLOT OWNER

It holds the slot's lock as an inherited descriptor. Were it killed too, the next start would find the slot
free and the state folder in place, and do the same.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from cluster.slots import Slot, remove, state_folder

FOLDER = Path(__file__).resolve().parents[1]


def start_guardian(slot: Slot) -> subprocess.Popen:
    """Start the guardian of `slot` for the calling process."""
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.guardian", str(slot.number), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[slot.lock],
        start_new_session=True,
        cwd="/",
    )


def main(slot: int, owner: int) -> None:
    """Wait for the end of process `owner`, then remove the cluster in `slot` unless the owner did."""
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        watched = None
    # Were the owner already dead, its id could be another process's by now; its children have got another
    # parent.
    if watched is not None and os.getppid() == owner:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.poll()
    if state_folder(slot).exists():
        remove(slot)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Shell scripts that leave nothing behind, be they killed or not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from cluster.errors import ClusterError

# What the script mounts and starts ends with it.
_ALONE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]


def run_alone(what: str, lines: Sequence[str], seconds: float) -> None:
    """Run the shell commands `lines`, up to the first that fails, in namespaces of their own.

    Raises:
        ClusterError: one failed; the message says `what` it was for and ends with what it printed.
    """
    command = [*_ALONE, "sh", "-ec", "\n".join(lines)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{what}: no end after {seconds} s") from late
    if done.returncode != 0:
        raise ClusterError(f"{what}: status {done.returncode}: {(done.stdout + done.stderr)[-4000:]}")

"""Run the programs that steer the machine (ip, nft, tc, ctr), with a deadline and messages to act on."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from cluster.errors import ClusterError


def run(
    command: Sequence[str],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = 60,
    environment: dict[str, str] | None = None,
) -> str:
    """Run `command` and return its standard output.

    Raises:
        ClusterError: it failed (unless `check` is false) or took longer than `timeout` seconds.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment
        )
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{shlex.join(command)}: no end after {timeout} s") from late
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"{shlex.join(command)}: status {done.returncode}: {said}")
    return done.stdout

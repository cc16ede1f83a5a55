"""Makes operators quickly: run as a program, it imports what they do, and forks one for each line it reads.

A line is a JSON object with variables of the operator's environment; the answer is its process id. Importing
the libraries takes a second of processor time, which tests that kill dozens of operators would pay each time.
What is the operator's own is left to each of them.
"""

import json
import os
import signal
import sys

import aiohttp
import cryptography.x509
import kopf.cli
from kubernetes.config import kube_config

IMPORTED = (aiohttp, cryptography.x509)


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for operators
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.update(json.loads(line))
            # A faked clock is this process's: its planner has none to read, and under libfaketime 0.9.10 each
            # `time.sleep` of Python's fails, with which a planner that has much to do pauses.
            os.environ.pop("LD_PRELOAD", None)
            # What the library has read from the environment when it was imported.
            kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ["KUBECONFIG"]
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            kopf.cli.main(["run", "-A", "--standalone", "-m", "gradsieve_operator"])
        print(pid, flush=True)


if __name__ == "__main__":
    main()

"""What the launcher does in every Python interpreter below ``gradsieve run``, whatever started it.

1. SIGUSR1 writes the stacks of all threads to a file of this process's own below ``GRADSIEVE_STACKS``, where
   the launcher collects them: written to stderr, the lines of several ranks would mingle.
2. Where several ranks share each core (``GRADSIEVE_SHARE_CORES``), this one stays on its own share: the
   kernel was seen to leave three ranks on one core and one on the other for seconds, and all wait for the
   slowest.
3. The ``sitecustomize`` that this one hides, if there is one, is run as Python would have done.
"""

from __future__ import annotations

import faulthandler
import importlib.machinery
import importlib.util
import os
import signal
import sys


def _register_stacks(folder: str) -> None:
    if signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        return
    file = os.path.join(folder, str(os.getpid()))
    faulthandler.register(signal.SIGUSR1, file=os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


def _stay_on_one_core() -> None:
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("HOROVOD_RANK")
    if rank is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.path.isdir(os.environ.get("GRADSIEVE_STACKS", "")):
    _register_stacks(os.environ["GRADSIEVE_STACKS"])
if os.environ.get("GRADSIEVE_SHARE_CORES") == "1":
    _stay_on_one_core()
_run_hidden()

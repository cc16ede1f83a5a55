"""Lets the launcher see the stacks of every Python interpreter below ``gradsieve run``, whatever started it.

1. SIGUSR1 writes the stacks of all threads to a file of this process's own below ``GRADSIEVE_STACKS``, where
   the launcher collects them: written to stderr, the lines of several ranks would mingle.
2. The ``sitecustomize`` that this one hides, if there is one, is run as Python would have done.
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


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.path.isdir(os.environ.get("GRADSIEVE_STACKS", "")):
    _register_stacks(os.environ["GRADSIEVE_STACKS"])
_run_hidden()

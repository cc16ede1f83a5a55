"""Programs in processes of their own that need not import torch and numba: 2 of their 2.5 seconds.

They are forked from a process that has imported both, and nothing of gradsieve.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection


def run_forked(program: str, environment: dict[str, str]) -> tuple[bool, str]:
    """Run a program with just this environment; return whether it came to its end, and what it printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "numba"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(program, environment, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        receiver.close()
        process.join()
        process.close()


def _run(program: str, environment: dict[str, str], answer: Connection) -> None:
    import numba

    os.environ.clear()
    os.environ.update(environment)
    numba.config.reload_config()
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    except BaseException:  # noqa: BLE001 - whatever it was, it is what the test is told
        answer.send((False, printed.getvalue() + traceback.format_exc()))
    else:
        answer.send((True, printed.getvalue()))

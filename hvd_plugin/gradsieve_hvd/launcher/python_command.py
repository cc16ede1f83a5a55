"""The command that every rank runs: the user's, with Python programs under ``bootstrap.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")

_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?t?$")
_FLAG = re.compile(r"-[bBdEIOPqRsSuv]+$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def rank_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that a rank runs in place of the user's.

    1. ``python`` and ``python3`` stand for the running interpreter: the one that has Horovod, also where its
       environment was not activated and ``PATH`` has another.
    2. ``python [options] (FILE | -m MODULE | -c CODE) ...`` runs under ``bootstrap.py``, by the same Python.
    3. Every other command is left alone.
    """
    program, *arguments = command
    if program in ("python", "python3"):
        program = sys.executable
    if not _PYTHON.match(Path(program).name):
        return command
    split = _options(arguments)
    if split is None:
        return (program, *arguments)
    return (program, *arguments[:split], str(BOOTSTRAP), *arguments[split:])


def _options(arguments: list[str]) -> int | None:
    """How many of Python's arguments are options; None if no file, module or code follows them."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word in _WITH_VALUE:
            at += 2
        elif _FLAG.match(word) or word.startswith(("-W", "-X")):
            at += 1
        elif word in ("-m", "-c"):
            return at if at + 1 < len(arguments) else None
        else:
            return None if word.startswith("-") else at
    return None

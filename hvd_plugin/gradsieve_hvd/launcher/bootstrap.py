"""Runs a rank's Python program and, if it fails, ends the rank at once.

``python bootstrap.py (FILE | -m MODULE | -c CODE) ...`` does what Python does without ``bootstrap.py``, but

- a failing program runs no exit handlers: MPI's would wait for the other ranks, which wait for this one, and
  Horovod's makes every other rank fail as well, each with a traceback, in a race for the exit status;
- torch and numba are imported without looking for garbage meanwhile.

Needs the standard library alone, so that it works for whatever interpreter the command names.
"""

from __future__ import annotations

import builtins
import gc
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Sequence


class QuietImports(importlib.abc.MetaPathFinder):
    """Imports torch, what that imports late, and numba without the garbage collector.

    Torch makes half a million objects, hardly any of them garbage; looking at them again and again took 0.4
    to 0.9 of the 4 to 5 seconds of processor time in which a rank starts, and 0.17 of the 0.35 of numba's
    import. Afterwards what is there is kept out of the collector's sight: looking at everything then takes
    0.13 s instead of 0.20, in which all other ranks wait for this one. What the program makes after the
    import is collected as ever.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return such a package's spec from the finders that come next, with a loader that does this."""
        if fullname not in ("torch", "torch._dynamo", "numba"):
            return None
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in after)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_quietly(module: types.ModuleType) -> None:
            enabled = gc.isenabled()
            gc.disable()
            try:
                execute(module)
                if fullname == "torch":
                    gc.freeze()
            finally:
                if enabled:
                    gc.enable()

        spec.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return spec


def _end(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed or missing: there is nothing to save.
            continue
    os._exit(status)


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _program_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the program's own first frame on."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


def _first_path(kind: str) -> str:
    if kind == "-c":
        return ""
    return os.getcwd() if kind == "-m" else os.path.dirname(os.path.realpath(kind))


def _run(arguments: list[str]) -> None:
    kind, *rest = arguments
    if not sys.flags.safe_path:
        sys.path[0] = _first_path(kind)
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        _execute(rest[0], "<string>")
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif os.path.isdir(kind) or zipfile.is_zipfile(kind):
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")
    else:
        sys.argv = arguments
        file = os.path.abspath(kind)
        with open(file, "rb") as source:
            _execute(source.read(), file)


def _execute(source: str | bytes, file: str) -> None:
    """Run ``source`` as ``__main__``, and leave it so for exit handlers."""
    program = types.ModuleType("__main__")
    vars(program).update(__builtins__=builtins, __annotations__={})
    if file != "<string>":
        program.__file__ = file
    sys.modules["__main__"] = program
    exec(compile(source, file, "exec"), vars(program))  # noqa: S102 - what `python FILE` does


def main(arguments: list[str]) -> None:
    """Run the program that ``arguments`` name as Python itself would; returns only if it has succeeded."""
    sys.meta_path.insert(0, QuietImports())
    try:
        _run(arguments)
    except SystemExit as request:
        if status := _exit_status(request.code):
            _end(status)
    except Exception as error:  # noqa: BLE001 - whatever the program did not catch
        error.__traceback__ = _program_frames(error.__traceback__)
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(error)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        _end(1)


if __name__ == "__main__":
    main(sys.argv[1:])

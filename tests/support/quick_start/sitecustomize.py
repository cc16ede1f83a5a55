"""Programs that tests start import what few of them need of torch when it is needed, not sooner.

Every optimizer of torch imports the compiler to say that its own methods are not to be compiled, and torch
itself what operators do to tensors without values, for whoever compiles: 2.4 of the 5.4 seconds of processor
time in which a rank starts (on a slow machine), and 0.9 of the 4.9 that are left on a slower one, for nothing
in programs that compile nothing. Goes on ``PYTHONPATH``; a program that is to be as its users have it leaves
that out.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

_COMPILER, _OPERATORS = "torch._dynamo", "torch._meta_registrations"


class CompilerOnDemand(types.ModuleType):
    """In place of the compiler until anything of it is asked for but these two."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Where nothing is compiled there is nothing to break off."""

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
        """Where nothing is compiled, return ``fn`` itself."""
        return fn

    def __getattr__(self, name: str) -> Any:
        # That it is a package is asked for when one of its modules is imported.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            OperatorsOnDemand.load()
        return getattr(importlib.import_module(self.__name__), name)


class OperatorsOnDemand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the one part of them that programs cannot do without, and the others with the compiler."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return importlib.machinery.ModuleSpec(name, self) if name == _OPERATORS else None

    def exec_module(self, module: types.ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        importlib.import_module("torch._prims")  # without it there are no torch.Generator

    @classmethod
    def load(cls) -> None:
        """Import them all."""
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, cls)]
        sys.modules.pop(_OPERATORS, None)
        importlib.import_module(_OPERATORS)


sys.modules[_COMPILER] = CompilerOnDemand(_COMPILER)
sys.meta_path.insert(0, OperatorsOnDemand())

"""Programs that tests start import torch's compiler when something is compiled, not sooner.

Every optimizer of torch imports it to say that its own methods are not to be compiled: 2.4 of the 5.4 seconds
of processor time in which a rank starts (on a slow machine), for nothing in programs that compile nothing.
Goes on ``PYTHONPATH``; a program that is to be as its users have it leaves that out.
"""

import sys
import types
from typing import Any


class CompilerOnDemand(types.ModuleType):
    """In place of ``torch._dynamo`` until anything of it is asked for but these two."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Where nothing is compiled there is nothing to break off."""

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
        """Where nothing is compiled, return ``fn`` itself."""
        return fn

    def __getattr__(self, name: str) -> Any:
        import importlib

        # That it is a package is asked for when one of its modules is imported.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


sys.modules["torch._dynamo"] = CompilerOnDemand("torch._dynamo")

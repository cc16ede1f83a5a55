"""Import this before torch, and torch's compiler is imported when something is compiled, not sooner.

Every optimizer of torch imports it to say that its own methods are not to be compiled: 1.1 of the 2.4 s of
processor time in which a rank starts, for nothing in programs that compile nothing.
"""

import importlib
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
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


sys.modules["torch._dynamo"] = CompilerOnDemand("torch._dynamo")

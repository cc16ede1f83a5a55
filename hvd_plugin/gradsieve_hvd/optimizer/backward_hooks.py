"""Hooks that backward calls when it has accumulated a gradient."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from gradsieve_hvd.engine.tensors import require_known_dtype


class Listener(Protocol):
    """Is told of gradients; the hooks do not keep it alive."""

    def backward_reached(self, name: str) -> None:
        """A backward pass has accumulated a gradient."""
        ...


class BackwardHooks:
    """The parameters of an optimizer by name, and their hooks.

    Args:
        named: in the order of their registration.
        listener: is told when a gradient was accumulated.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]], listener: Listener) -> None:
        self.named = dict(named)
        self._listener = weakref.ref(listener)
        self._handles: dict[str, RemovableHandle] = {}
        self.register()

    def add(self, name: str, parameter: Parameter) -> None:
        """Have one more parameter, which must not be frozen to take part.

        Raises:
            ConfigurationError: its type cannot be exchanged.
        """
        require_known_dtype(name, parameter.dtype)
        self.named[name] = parameter
        self.register()

    def register(self) -> None:
        """Give hooks to parameters that lack them; one that is frozen gets its own when it has thawed."""
        listener_of = self._listener
        for name, parameter in self.named.items():
            if parameter.requires_grad and name not in self._handles:

                def hook(_: Tensor, name: str = name) -> None:
                    listener = listener_of()
                    if listener is not None:
                        listener.backward_reached(name)

                self._handles[name] = parameter.register_post_accumulate_grad_hook(hook)

    def reduced(self) -> list[tuple[str, Parameter]]:
        """Return the parameters that take part: all but those that have been frozen from the beginning."""
        return [(name, parameter) for name, parameter in self.named.items() if name in self._handles]

    def by_name(self) -> list[tuple[str, Parameter]]:
        """Return those that take part, sorted by name."""
        return sorted(self.reduced())

"""Hooks that backward calls when it has accumulated a gradient."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.tensors import require_known_dtype


class Listener(Protocol):
    """Is told of gradients; neither it nor `BackwardHooks` is kept alive by torch's hooks."""

    def gradient_ready(self, name: str) -> None:
        """The last of a step's backward passes has accumulated a gradient."""
        ...


class BackwardHooks:
    """The parameters of an optimizer by name, and their hooks.

    Args:
        named: in the order of their registration.
        listener: is told when a gradient is ready.
        passes: backward passes before it is.

    named, passes: as given; both may change between two steps. paused: whether nobody is told of gradients.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]], listener: Listener, passes: int) -> None:
        self.named, self.passes, self.paused = dict(named), passes, False
        self._listener = weakref.ref(listener)
        self._passes_left: dict[str, int] = {}
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
        own = weakref.ref(self)
        for name, parameter in self.named.items():
            if parameter.requires_grad and name not in self._handles:

                def hook(_: Tensor, name: str = name) -> None:
                    hooks = own()
                    if hooks is not None:
                        hooks.accumulated(name)

                self._handles[name] = parameter.register_post_accumulate_grad_hook(hook)

    def remove(self) -> None:
        """Have backward call nobody here any more."""
        for handle in self._handles.values():
            handle.remove()
        self.paused = True

    def accumulated(self, name: str) -> None:
        """A backward pass has accumulated a gradient.

        Raises:
            ConfigurationError: more passes than were announced.
        """
        if self.paused:
            return
        left = self._passes_left.get(name, self.passes)
        if left <= 0:
            raise ConfigurationError(
                f"the gradient of '{name}' was computed more than backward_passes_per_step={self.passes} "
                "times before step() or synchronize(). Raise backward_passes_per_step to accumulate "
                "gradients locally. If another DistributedOptimizer was made of these parameters earlier "
                "and is not used any more, delete it: its hooks live as long as it does."
            )
        self._passes_left[name] = left - 1
        listener = self._listener()
        if left == 1 and listener is not None:
            listener.gradient_ready(name)

    def end_step(self) -> None:
        """The passes that come are those of another step."""
        self._passes_left.clear()

    def reduced(self) -> list[tuple[str, Parameter]]:
        """Return the parameters that take part: all but those that have been frozen from the beginning."""
        return [(name, parameter) for name, parameter in self.named.items() if name in self._handles]

    def by_name(self) -> list[tuple[str, Parameter]]:
        """Return those that take part, sorted by name."""
        return sorted(self.reduced())

"""A class derived from that of the user's optimizer, and an optimizer of that class."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, NoReturn

import torch

from gradsieve.errors import ConfigurationError

from .arguments import HOROVODS_MODULE


def with_methods(plain: type[torch.optim.Optimizer], methods: type, names: Collection[str]) -> type:
    """Return a class with the methods of those names directly above ``plain``.

    It says that it is Horovod's: then ``hvd.broadcast_optimizer_state()`` initialises state by the step of
    the class below, rather than by one that would wait for all ranks.
    """
    own = {name: inspect.getattr_static(methods, name) for name in names}
    return type(
        plain.__name__, (plain,), {**own, "__module__": HOROVODS_MODULE, "__reduce_ex__": _refuse_copies}
    )


def _refuse_copies(optimizer: torch.optim.Optimizer, protocol: object) -> NoReturn:  # noqa: ARG001
    """Refuse to be copied or pickled: a copy would have no connection with the other ranks.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        "a distributed optimizer cannot be copied or pickled: it is connected with the other ranks. Save "
        "optimizer.state_dict() and gradsieve_hvd.state_dict(optimizer) instead."
    )


def sharing_all_with(optimizer: torch.optim.Optimizer, derived: type, names: Collection[str]) -> Any:
    """Return an optimizer of a derived class that shares state and parameter groups with ``optimizer``."""
    made: Any = object.__new__(derived)
    # A scheduler puts a step of its own onto an optimizer, which is not to hide ours.
    made.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in names})
    return made

"""What no front door can serve."""

from __future__ import annotations

from typing import Any

from gradsieve import CompressionConfig
from gradsieve.errors import ConfigurationError

NOT_SYNCHRONIZED = (
    "step() within skip_synchronize() while gradients are exchanged: it would apply this rank's own. Call "
    "optimizer.synchronize() before."
)


def require_no_double_momentum(optimizer: Any, config: CompressionConfig) -> None:
    """Refuse an optimizer with momentum under momentum correction.

    Raises:
        ConfigurationError: it would be applied twice.
    """
    if config.momentum is None or config.momentum.allow_double_momentum:
        return
    for number, group in enumerate(optimizer.param_groups):
        for setting in ("momentum", "betas"):
            value = group.get(setting)
            momentum = value[0] if isinstance(value, tuple | list) else value
            if momentum:
                raise ConfigurationError(
                    f"momentum=MomentumCorrection(...) and {setting}={value!r} of the optimizer (parameter "
                    f"group {number}) would apply momentum twice. Give one of them up: SGD without momentum, "
                    "or no MomentumCorrection with Adam and its kind. Those who mean both say "
                    "MomentumCorrection(allow_double_momentum=True)."
                )


def refuse_closure(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Refuse ``optimizer.step(closure)``; the arguments are those of a step pre-hook, the optimizer first.

    Raises:
        ConfigurationError: there is one. It would run after the exchange, so that every rank would apply
            the gradients of its own closure alone; and where the closure exchanges them itself, what is
            checked before the update has been checked before them.
    """
    closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is not None:
        raise ConfigurationError(
            "optimizer.step(closure): the closure would be called after gradients were exchanged, and after "
            "they were checked, so those that it computes would be applied on this rank alone, or unchecked. "
            "Call it yourself before step(): loss = closure(); optimizer.step()."
        )

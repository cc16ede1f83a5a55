"""The optimizer of ``mode="local"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.optimizer.connection import Connection
from gradsieve_hvd.optimizer.derived_class import sharing_all_with, with_methods
from gradsieve_hvd.optimizer.sampling import BatchCounter

from .methods import METHODS, LocalMethods
from .rounds import LocalRounds
from .rules import LocalRules, require_supported, usual_settings

if TYPE_CHECKING:
    from gradsieve_hvd.optimizer.request import Request


def local(
    request: Request,
    *,
    local_steps: int = 15,
    residual_decay: float = 0.95,
    outer_learning_rate: float = 1.0,
) -> Any:
    """Return an optimizer whose steps are local, and whose weights are made the same every few of them.

    Args:
        request: ``compression=None`` sends 64 of every 4 096 elements with 2-bit values.
        local_steps: H, from one exchange to the next; the paper takes 15 to 250.
        residual_decay: β, what is left of what was not sent when the next round begins; it stands for the
            momentum of the common step. 1 forgets nothing.
        outer_learning_rate: α, of the common step.

    Raises:
        ConfigurationError: a setting is not allowed, or has no meaning in this mode.
    """
    rules = LocalRules(steps=local_steps, decay=residual_decay, learning_rate=outer_learning_rate)
    settings = request.compression or usual_settings()
    require_supported(settings)
    meaningless = {
        "op=Sum": not request.averages,
        "gradient_predivide_factor": request.predivide != 1.0,
        "groups": request.groups is not None,
        f"exchange={request.exchange!r}": request.exchange not in (None, "allgather"),
        "rank": request.rank is not None,
    }
    for name, found in meaningless.items():
        if found:
            raise ConfigurationError(f"mode='local' averages over all ranks by allgather; leave out {name}")
    made = sharing_all_with(
        request.optimizer, with_methods(type(request.optimizer), LocalMethods, METHODS), METHODS
    )
    connection = Connection(request.ranks(settings.timeout_seconds), settings.timeout_seconds)
    batches = BatchCounter(connection.messages.rank, connection.messages.size)
    made.local_rounds = LocalRounds(request.named, settings, rules, connection, request.passes, batches)
    return made

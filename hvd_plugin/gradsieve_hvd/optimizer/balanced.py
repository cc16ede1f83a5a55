"""``mode="balanced"``: synchronous steps with batches by measured speed (LB-BSP)."""

from __future__ import annotations

from typing import Any

from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.server.modes import USUAL_ANNOUNCEMENTS

from .request import Request
from .synchronous import synchronous_as


def balanced(request: Request, *, announce_every: int = USUAL_ANNOUNCEMENTS) -> Any:
    """Return an optimizer as of mode "synchronous" whose gradients are means over samples, and that changes
    the ranks' shares of a `DynamicSampler`.

    Args:
        request: see `DistributedOptimizer`.
        announce_every: steps after which ranks tell each other their speeds, and shares may change; they do
            so after the third, too.

    Raises:
        ConfigurationError: see `synchronous_as`; or a setting has no meaning in this mode.
    """
    if not is_count(announce_every, 1):
        raise ConfigurationError(f"announce_every={announce_every!r}: expected an integer of at least 1")
    settings = settings_from(request.compression)
    meaningless = {
        "op=Sum": not request.averages,
        "backward_passes_per_step": request.passes != 1,
        "clip_global_norm": settings.clip_global_norm is not None,
    }
    for name, found in meaningless.items():
        if found:
            raise ConfigurationError(
                f"mode='balanced' weighs each rank's gradient by its samples in the step, which {name} does "
                "not go with; leave it out"
            )
    made = synchronous_as(request, mode="balanced", announce_every=announce_every)
    made.synchronizer.weigh(announce_every)
    return made

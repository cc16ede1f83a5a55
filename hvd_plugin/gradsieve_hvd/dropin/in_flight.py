"""Gradients that are changed while they are exchanged: the change would be lost without a word.

Clipping or ``scaler.unscale_()`` between ``backward()`` and ``synchronize()`` changes a tensor that has been
sent already and will be overwritten. (Plain Horovod reduces in place meanwhile, so that there it is a race.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError

from .context import HorovodContext

_PROBED = 65_536  # elements at the most
_SHOWN = 5


class InFlightCheck:
    """Finds such changes of one step.

    1. torch counts most changes in place. Gradients that share memory (parts of one flat buffer, or of what
       ``torch.cat`` of parameters brings) share the count, too, which then says nothing.
    2. It does not count those of ``_foreach`` operations, with which it clips and unscales. So the norm of a
       part of one compressed gradient is compared, too: such changes hit all alike.
    """

    def __init__(self) -> None:
        self._probe: tuple[HorovodContext, float] | None = None
        self._changed: set[str] = set()

    def begin(self, context: HorovodContext) -> None:
        """A gradient's exchange has begun."""
        context.version = _changes(context.gradient)
        if self._probe is None and context.gather is not None:
            self._probe = (context, _norm_of_part(context.gradient))

    def end(self, context: HorovodContext) -> None:
        """It is about to be overwritten; Horovod has not touched its memory if it is compressed."""
        if self._is_changed(context):
            self._changed.add(context.state.name)
        if self._probe is not None and self._probe[0] is context:
            self._probe = None

    def raise_if_any(self, contexts: Iterable[HorovodContext]) -> None:
        """Raise if a gradient in ``contexts``, which are under way, or one that was overwritten was changed.

        Raises:
            ConfigurationError: names the parameters.
        """
        changed = sorted(self._changed | {t.state.name for t in contexts if self._is_changed(t)})
        if changed:
            names = ", ".join(f"'{name}'" for name in changed[:_SHOWN])
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise ConfigurationError(
                f"the gradient of {names}{more} was changed or replaced between backward() and "
                "synchronize(), while it was exchanged, so the change would be lost. Call "
                "optimizer.synchronize() first; then clip, unscale or change gradients; then step() in "
                "optimizer.skip_synchronize()."
            )

    def _is_changed(self, context: HorovodContext) -> bool:
        gradient = context.gradient
        if context.state.parameter.grad is not gradient or _changes(gradient) != context.version:
            return True
        if self._probe is None or self._probe[0] is not context:
            return False
        before, now = self._probe[1], _norm_of_part(context.gradient)
        return before != now and not (before != before and now != now)


def _changes(gradient: Tensor) -> int:
    """Return torch's count of changes in place; 0 if the gradient shares it with others."""
    shares = gradient.untyped_storage().nbytes() > gradient.nbytes
    return 0 if shares else gradient._version


def _norm_of_part(gradient: Tensor) -> float:
    """The norm of some of its first rows; a view, whatever its strides."""
    rows = max(1, _PROBED * len(gradient) // gradient.numel()) if gradient.dim() and gradient.numel() else 1
    part = gradient.detach()[:rows] if gradient.dim() else gradient.detach()
    return float(torch.linalg.vector_norm(part, dtype=torch.float32))

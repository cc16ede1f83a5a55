"""Gradients that are changed while they are exchanged: the change would be lost without a word.

Clipping or ``scaler.unscale_()`` between ``backward()`` and ``synchronize()`` changes a tensor that has been
sent already and will be overwritten. (Plain Horovod reduces in place meanwhile, so that there it is a race.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve.errors import ConfigurationError

from .parameters import ParameterState

_PROBED = 65_536  # elements at the most
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A gradient whose exchange has begun. version: torch's count of changes in place then. norm: of a part
    of it; None if it is not looked at.
    """

    state: ParameterState
    gradient: Tensor
    version: int
    norm: float | None

    def is_changed(self) -> bool:
        if self.state.parameter.grad is not self.gradient or _changes(self.gradient) != self.version:
            return True
        if self.norm is None:
            return False
        before, now = self.norm, _norm_of_part(self.gradient)
        return before != now and not (before != before and now != now)


class InFlightCheck:
    """Finds such changes of one step.

    1. torch counts most changes in place. Gradients that share memory (parts of one flat buffer, or of what
       ``torch.cat`` of parameters brings) share the count, too, which then says nothing.
    2. It does not count those of ``_foreach`` operations, with which it clips and unscales. So the norm of a
       part of one compressed gradient is compared, too: such changes hit all alike.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Begun] = {}
        self._probed = False
        self._changed: set[str] = set()

    def begin(self, state: ParameterState, gradient: Tensor) -> None:
        """A gradient's exchange has begun."""
        norm = None
        if not self._probed and state.compressor is not None:
            self._probed, norm = True, _norm_of_part(gradient)
        self._open[state.name] = _Begun(state, gradient, _changes(gradient), norm)

    def end(self, state: ParameterState) -> None:
        """It is about to be overwritten; nobody has touched its memory meanwhile if it is compressed."""
        begun = self._open.pop(state.name, None)
        if begun is None:  # of a step that was rolled back
            return
        self._probed = self._probed and begun.norm is None
        if begun.is_changed():
            self._changed.add(state.name)

    def raise_if_any(self) -> None:
        """Raise if a gradient that is under way, or one that was overwritten, was changed.

        Raises:
            ConfigurationError: names the parameters.
        """
        under_way = {name for name, begun in self._open.items() if begun.is_changed()}
        changed = sorted(self._changed | under_way)
        if changed:
            names = ", ".join(f"'{name}'" for name in changed[:_SHOWN])
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise ConfigurationError(
                f"the gradient of {names}{more} was changed or replaced between backward() and "
                "synchronize(), while it was exchanged, so the change would be lost. Call "
                "optimizer.synchronize() first; then clip, unscale or change gradients; then step() in "
                "optimizer.skip_synchronize()."
            )


def _changes(gradient: Tensor) -> int:
    """Return torch's count of changes in place; 0 if the gradient shares it with others."""
    shares = gradient.untyped_storage().nbytes() > gradient.nbytes
    return 0 if shares else gradient._version


def _norm_of_part(gradient: Tensor) -> float:
    """The norm of some of its first rows; a view, whatever its strides."""
    rows = max(1, _PROBED * len(gradient) // gradient.numel()) if gradient.dim() and gradient.numel() else 1
    part = gradient.detach()[:rows] if gradient.dim() else gradient.detach()
    # In fp64 for a model that became one of fp64 after its first step.
    dtype = torch.promote_types(part.dtype, torch.float32)
    return float(torch.linalg.vector_norm(part, dtype=dtype))

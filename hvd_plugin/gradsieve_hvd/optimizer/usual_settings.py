"""What gradients travel as when a user has said nothing about it: what their optimizer is known to bear."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

import gradsieve
from gradsieve_hvd.engine.settings import Settings

from .momentum import why_left
from .paths import ExchangeName

_log = logging.getLogger("gradsieve.optimizer")
Groups = list[dict[str, Any]]
_DENSITY = 0.03
_LARGEST_BETA1 = 0.5
"""Of Adam and AdamW, with which selected entries have kept the loss; with 0.9 they cost 4 to 9 % of it."""


@dataclass(frozen=True, slots=True)
class UsualSettings:
    """exchange: its value. settings: of compression. why: what they were chosen for, in words."""

    exchange: ExchangeName
    settings: Settings
    why: str

    def log(self) -> None:
        """Say it, as a warning where nobody may expect it: that nothing is selected."""
        level = logging.WARNING if self.exchange == "bf16" else logging.INFO
        _log.log(level, "nothing was set, so gradients travel by exchange=%r: %s", self.exchange, self.why)


def usual_settings(optimizer: torch.optim.Optimizer, *, momentum_correction: bool) -> UsualSettings:
    """Return what suits an optimizer, by what ``benchmarks/without_settings.py`` has measured.

    1. Where selected entries with error feedback came within 2 % of the loss of dense training: 3 % of them
       with values of 4 bits, by the path that is fastest.
    2. Else, and with optimizers that were not measured: all of them in 16 bits.

    momentum_correction: whether SGD's momentum may be applied before entries are selected.
    """
    left = "" if momentum_correction else "momentum_correction=False"
    whole = _why_whole(type(optimizer), optimizer.param_groups, left)
    compression = gradsieve.Compression.laplace(density=_DENSITY, value_dtype="int4")
    if not whole:
        why = f"{_DENSITY:.0%} of the entries, which {type(optimizer).__name__} goes with"
        return UsualSettings("auto", Settings(config=compression), why)
    why = f"all of them, as selecting entries may cost some of the loss with {whole}"
    return UsualSettings("bf16", Settings(config=compression), f"{why}. To select, set compression=")


class ChosenFor:
    """Warns once when an optimizer is no longer what selecting was chosen for: schedules change momentum.

    Args:
        kind: the user's class.
        left: why momentum is applied after the exchange, in words; empty if it is taken over.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], left: str) -> None:
        self._kind, self._left, self._told = kind, left, False

    def look(self, groups: Groups) -> None:
        """Look at the settings that it has now."""
        if not self._told and (whole := _why_whole(self._kind, groups, self._left)):
            self._told = True
            _log.warning(
                "nothing was set, and entries are selected, which may cost some of the loss with %s, as it "
                "is now: set exchange='bf16', or compression= to select",
                whole,
            )


def _why_whole(kind: type[torch.optim.Optimizer], groups: Groups, left: str) -> str:
    """Return with which optimizer nothing should be selected; empty if selecting is known to be harmless.

    left: why SGD's momentum is not taken over, whatever it is; empty if that depends on what it is.
    """
    name = kind.__name__
    if kind is torch.optim.SGD:
        if not any(group["momentum"] for group in groups):
            return ""
        why = left or why_left(groups)
        return f"the momentum of {name} where it is applied after the exchange ({why})" if why else ""
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        largest = max(float(group["betas"][0]) for group in groups)
        if largest <= _LARGEST_BETA1:
            return ""
        return f"{name}'s beta1 of {largest:g} (with betas=(0, 0.999) it does not, see docs/methods.md)"
    return f"{name}, which was not tried"

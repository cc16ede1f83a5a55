"""The values of ``exchange=``, and what each means for an optimizer's buckets."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gradsieve import Compression
from gradsieve.codec import ValueDtype
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.dense import FloatDtype

ExchangeName = Literal["allgather", "ring", "scatter", "dense", "fp16", "bf16"]


@dataclass(frozen=True, slots=True)
class Path:
    """How gradients travel.

    sparse: makes the exchange of a bucket of compressed gradients, for a type of values; None if nothing is
    compressed. bounded: whether it selects again, down to as many entries as were asked for. dense: number
    format of gradients that are not compressed.
    """

    sparse: Callable[[ValueDtype], Exchange] | None = None
    bounded: bool = False
    dense: FloatDtype = "float32"

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings; without compression if this path has none."""
        if self.sparse is not None:
            return settings
        nothing = Compression.topk(min_elements=sys.maxsize, momentum=settings.config.momentum)
        return dataclasses.replace(settings, config=nothing)


PATHS: Final[Mapping[str, Path]] = {
    "allgather": Path(AllgatherExchange),
    "ring": Path(RingExchange),
    "scatter": Path(ScatterExchange, bounded=True),
    "dense": Path(),
    "fp16": Path(dense="float16"),
    "bf16": Path(dense="bfloat16"),
}


def path_named(name: str) -> Path:
    """Return a path.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if name not in PATHS:
        raise ConfigurationError(f"exchange={name!r}: known are {', '.join(map(repr, PATHS))}")
    return PATHS[name]

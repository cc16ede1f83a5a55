"""The values of ``exchange=``, and what each means for an optimizer's buckets."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from torch.nn import Parameter

from gradsieve import Compression, CompressionConfig, Policy
from gradsieve.codec import ValueDtype
from gradsieve.density import is_count
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.factored_layer import FactoredLayer
from gradsieve_hvd.engine.parameters import ParameterState, compresses
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.exchange import AllgatherExchange, Exchange, RingExchange, ScatterExchange
from gradsieve_hvd.exchange.dense import FloatDtype
from gradsieve_hvd.exchange.lowrank import LARGEST_RANK, factor_shape

ExchangeName = Literal["auto", "allgather", "ring", "scatter", "lowrank", "dense", "fp16", "bf16"]
_USUAL_RANK = 4


@dataclass(frozen=True, slots=True)
class Path:
    """How gradients travel.

    sparse: makes the exchange of a bucket of selected entries, for a type of values; None if nothing is
    selected. bounded: whether it selects again, down to as many entries as were asked for. rank: of the
    factors that matrices travel as; 0 for none. dense: number format of gradients that travel whole.
    chooses: whether rank 0 may have selected gradients travel by other paths, as it goes. why: it was taken.
    """

    sparse: Callable[[ValueDtype], Exchange] | None = None
    bounded: bool = False
    rank: int = 0
    dense: FloatDtype = "float32"
    chooses: bool = False
    why: str = "it was set (exchange=)"

    @property
    def compresses(self) -> bool:
        """Whether some gradients do not travel whole."""
        return self.sparse is not None or bool(self.rank)

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings; without what has no meaning on this path."""
        own = settings.config
        if self.sparse is not None:
            return settings
        if self.rank:
            config = Compression.topk(
                min_elements=own.min_elements,
                value_dtype=own.value_dtype,
                error_feedback=own.error_feedback,
                residual_dtype=own.residual_dtype,
                momentum=own.momentum,
                clip_norm=own.clip_norm,
            )
        else:
            config = Compression.topk(min_elements=sys.maxsize, momentum=own.momentum)
        return dataclasses.replace(settings, config=config)

    def factor_of(self, config: CompressionConfig, name: str, parameter: Parameter) -> tuple[int, int] | None:
        """Return the shape of the factor that a parameter's gradient travels by; None if it does not."""
        if not self.rank or not compresses(config, name, parameter):
            return None
        return factor_shape(parameter.shape, self.rank)

    def selects(self, config: CompressionConfig, name: str, parameter: Parameter) -> bool:
        """Whether entries of the parameter's gradient are selected."""
        return self.sparse is not None and compresses(config, name, parameter)

    def new_state(
        self, name: str, parameter: Parameter, config: CompressionConfig, policy: Policy
    ) -> ParameterState:
        """Return what is kept of a parameter, as of before its first step."""
        if not self.rank:
            return ParameterState.of(name, parameter, config, policy)
        shape = self.factor_of(config, name, parameter)
        if shape is None:
            return ParameterState.dense(name, parameter, config)
        layer = FactoredLayer(config, name, parameter.numel(), parameter.device, shape)
        return ParameterState(name, parameter, factored=layer)


PATHS: Final[Mapping[str, Path]] = {
    "auto": Path(AllgatherExchange, chooses=True),
    "allgather": Path(AllgatherExchange),
    "ring": Path(RingExchange),
    "scatter": Path(ScatterExchange, bounded=True),
    "lowrank": Path(rank=_USUAL_RANK),
    "dense": Path(),
    "fp16": Path(dense="float16"),
    "bf16": Path(dense="bfloat16"),
}


def path_named(name: str, rank: int | None = None) -> Path:
    """Return a path.

    rank: of its factors; None for the usual one.

    Raises:
        ConfigurationError: there is none of that name, or it takes no such rank.
    """
    if name not in PATHS:
        raise ConfigurationError(f"exchange={name!r}: known are {', '.join(map(repr, PATHS))}")
    path = PATHS[name]
    if rank is None:
        return path
    if not path.rank:
        raise ConfigurationError(f"rank={rank!r} is for exchange='lowrank', and exchange is {name!r}")
    if not is_count(rank, 1) or rank > LARGEST_RANK:
        raise ConfigurationError(f"rank={rank!r}: expected a number from 1 to {LARGEST_RANK}")
    return dataclasses.replace(path, rank=rank)

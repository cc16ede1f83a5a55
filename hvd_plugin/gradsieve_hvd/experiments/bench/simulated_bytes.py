"""What every path sends, simulated for any number of ranks, and where one begins to send less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradsieve.codec import ValueDtype
from gradsieve_hvd.exchange import messages_sent
from gradsieve_hvd.exchange.messages_sent import MOST_RANKS, Supports

Row = dict[str, Any]
_SHOWN = (2, 4, 8, 16, 32, 64, 128, MOST_RANKS)


@dataclass(frozen=True)
class Setting:
    """elements: of the gradient. density: of selections. hot: share of all positions that they lie in."""

    elements: int
    density: float
    hot: float
    value_dtype: ValueDtype

    def supports(self) -> Supports:
        """Return how selections overlap."""
        return Supports(self.elements, self.density * self.elements, self.hot * self.elements)


def _sparse(name: str, bound: bool = False) -> Callable[[Setting, int], float]:
    def sent(setting: Setting, ranks: int) -> float:
        supports = setting.supports()
        messages = messages_sent.PATHS[name](supports, ranks, supports.entries if bound else None)
        return messages_sent.bytes_of(messages, setting.value_dtype)

    return sent


def _dense(bytes_per_value: int) -> Callable[[Setting, int], float]:
    return lambda setting, ranks: messages_sent.dense_bytes(setting.elements, ranks, bytes_per_value)


PATHS: dict[str, Callable[[Setting, int], float]] = {
    "dense": _dense(4),
    "fp16": _dense(2),
    "allgather": _sparse("allgather"),
    "ring": _sparse("ring"),
    "scatter": _sparse("scatter"),
    "ring, k applied": _sparse("ring", bound=True),
    "scatter, k applied": _sparse("scatter", bound=True),
}


def rows(setting: Setting) -> list[Row]:
    """Return the bytes of one rank by path, for 2 to 256 ranks."""
    return [
        {"ranks": ranks} | {name: sent(setting, ranks) for name, sent in PATHS.items()} for ranks in _SHOWN
    ]


def crossings(setting: Setting) -> Iterator[str]:
    """Yield from how many ranks on each path sends less than an allgather."""
    for name in PATHS:
        if name != "allgather":
            ranks = messages_sent.crossing(
                partial(PATHS[name], setting), partial(PATHS["allgather"], setting)
            )
            since = f"from {ranks} ranks on" if ranks else f"for no number of ranks up to {MOST_RANKS}"
            yield f"{name} sends less than allgather {since}"

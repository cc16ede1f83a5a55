"""What a Prometheus knows of nodes: words that may explain a slow rank, and decide nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from gradsieve_operator.errors import OperatorError

_INTERVAL_SECONDS: Final = 30.0
_QUERY_SECONDS: Final = 10.0
_STALE_SECONDS: Final = 120.0
_MOST_BYTES: Final = 8 << 20
_MOST_NODES: Final = 20_000
_LONGEST_NAME: Final = 253

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signal:
    """Something that is measured of nodes.

    Attributes:
        query: in PromQL; one value per node, whose name is the label ``node``.
        least: value from which it is worth a word.
        words: with the value in them.
    """

    query: str
    least: float
    words: str


def _of_processors(expression: str) -> str:
    """Return a query by nodes of what node-exporter measures, which names its node in one metric alone."""
    named = 'label_replace(node_uname_info, "node", "$1", "nodename", "(.+)")'
    return f"avg by (node) (({expression}) * on (instance) group_left (node) {named})"


def _of_gpus(metric: str) -> str:
    """Return a query by nodes of what DCGM's exporter measures."""
    return f'max by (node) (label_replace({metric}, "node", "$1", "Hostname", "(.+)"))'


SIGNALS: Final = (
    Signal(
        _of_processors("rate(node_pressure_cpu_waiting_seconds_total[2m])"),
        0.2,
        "processes wait for a processor {:.0%} of the time",
    ),
    Signal(
        _of_processors('avg by (instance) (rate(node_cpu_seconds_total{mode="steal"}[2m]))'),
        0.05,
        "{:.0%} of the processors' time is stolen",
    ),
    Signal(_of_gpus("DCGM_FI_DEV_GPU_TEMP"), 85.0, "a GPU has {:.0f} °C"),
    Signal(_of_gpus("DCGM_FI_DEV_XID_ERRORS"), 1.0, "a GPU reports XID {:.0f}"),
)


class NodeMetrics:
    """Asks again and again, and keeps the last answers for two minutes.

    Whatever goes wrong is said once, and leaves slow ranks unexplained.

    Args:
        url: of the Prometheus, such as http://prometheus.monitoring:9090.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/api/v1/query"
        self._words: Mapping[str, tuple[str, ...]] = {}
        self._read_at = -math.inf
        self._trouble = ""

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_QUERY_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await self.read(session)
                await asyncio.sleep(_INTERVAL_SECONDS)

    def words(self) -> Mapping[str, tuple[str, ...]]:
        """Return what is worth a word, by node."""
        return self._words if time.monotonic() - self._read_at < _STALE_SECONDS else {}

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Ask once."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        try:
            for signal in SIGNALS:
                for node, value in (await self._ask(session, signal.query)).items():
                    if value >= signal.least:
                        found[node].append(signal.words.format(value))
        except (aiohttp.ClientError, TimeoutError, OSError, OperatorError) as error:
            trouble = f"{type(error).__name__}: {error}"[:300]
            if trouble != self._trouble:
                _log.warning("%s does not tell how nodes are: %s", self._url, trouble)
            self._trouble = trouble
            return
        if self._trouble:
            _log.info("%s tells how nodes are again", self._url)
        self._words = {node: tuple(words) for node, words in found.items()}
        self._read_at, self._trouble = time.monotonic(), ""

    async def _ask(self, session: aiohttp.ClientSession, query: str) -> Mapping[str, float]:
        async with session.get(self._url, params={"query": query}, allow_redirects=False) as answer:
            if answer.status != 200:
                raise OperatorError(f"status {answer.status}")
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > _MOST_BYTES:
                    raise OperatorError(f"the answer has more than {_MOST_BYTES} bytes")
        return values_by_node(bytes(body))


def values_by_node(body: bytes) -> Mapping[str, float]:
    """Return the values of an instant query by the label ``node``; without those that are no numbers.

    Raises:
        OperatorError: it is no such answer.
    """
    try:
        found = json.loads(body)
        samples = [(_label(each), each["value"][1]) for each in found["data"]["result"][:_MOST_NODES]]
        values = {node: float(value) for node, value in samples if node}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise OperatorError("the answer is none of a Prometheus' instant queries") from error
    return {node: value for node, value in values.items() if math.isfinite(value)}


def _label(sample: Any) -> str:
    name = sample["metric"].get("node", "")
    return name if isinstance(name, str) and len(name) <= _LONGEST_NAME else ""

"""The path of compressed gradients follows the link: rank 0 chooses, all ranks change together."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final

import torch
from torch import Tensor

from gradsieve import CompressionConfig
from gradsieve_hvd.choice.costs import Load, WorkRates
from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.choice.link_estimate import SMALLEST_PROBE, Timing
from gradsieve_hvd.choice.machine import measure_rates
from gradsieve_hvd.choice.path_chooser import PathChooser, Round
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.exchange.dense import whole_dtype
from gradsieve_hvd.transport.base import Transport, begin_allgather

from .buckets import Bucket, DenseBucket, SparseBucket
from .exchange_thread import Begun, Pending
from .exchange_timing import Travelled, timings
from .paths import PATHS
from .plan import BucketPlan
from .round_clock import RoundClock
from .trailer import Trailer
from .whole_bucket import WholeBucket

_log = logging.getLogger("gradsieve.choice")
_ORDERED: Final = ("allgather", "ring", "scatter", "dense", "fp16", "bf16")
_KILO = 1000
_LEARNING_SHARE = 0.01
_FIRST_PROBES = 3
"""When nothing else is under way, and no rank computes: later few messages tell of start-ups alone."""
_BOOT_ID = FilePath("/proc/sys/kernel/random/boot_id")

Launched = Sequence[tuple[Bucket, Pending[Any]]]


def allowed_paths(config: CompressionConfig) -> list[str]:
    """Return the paths by which no less of a gradient is sent than a compression asks for; the first to begin
    with.

    What travels whole is more than any density asks for, in fp32 or in as many bits as selected values may
    have. With momentum that is forgotten where it is sent, nothing would be left of it: then nothing does.
    """
    paths = ["allgather", "ring", "scatter"]
    if config.momentum is not None and config.momentum.masking:
        return paths
    short = {"float32": [], "float16": ["fp16"], "bfloat16": ["bf16"]}[whole_dtype(config.value_dtype)]
    return [*paths, "dense", *short]


class PathChanges:
    """Follows rank 0's orders; on rank 0 gives them.

    1. What rank 0 wants it says behind the elements of the bucket that counts ranks that have joined. At the
       end of that round all ranks know it, and change. A round that a rank refuses carries no order; the next
       one does.
    2. If a probe was ordered, they make it now, when nothing else travels.
    3. Rank 0 looks at what the round took, and makes up its mind. Where rounds are so short that this would
       take more than a hundredth of the time, it leaves some out.

    Rounds in which ranks have joined, and wait for others, tell nothing.

    Args:
        plan: of the buckets.
        reducer: of the optimizer.
        submit: hands work to the exchange thread.
        clock: of rounds.

    path: in use.
    """

    def __init__(
        self,
        plan: BucketPlan,
        reducer: Reducer,
        submit: Callable[[Begun[Any], str], Pending[Any]],
        clock: RoundClock,
    ) -> None:
        self._plan, self._reducer, self._submit, self._clock = plan, reducer, submit, clock
        self._allowed = allowed_paths(reducer.settings.config)
        self.restart()

    def restart(self) -> None:
        """Begin as in a new process: the ranks may be others than before."""
        self.path = self._allowed[0]
        self._chooser: PathChooser | None = None
        self._ranks_per_core = 1.0
        self._learns_again, self._first_round, self._rounds = 0.0, True, 0

    def agree(self) -> None:
        """Time this machine and messages of few bytes, and find out how many ranks share a core, before the
        first exchange; all ranks call it, and return together.

        Raises:
            ExchangeError: a rank did not tell in time.
        """
        rank, ranks = self._reducer.messages.rank, self._reducer.messages.size
        chooses = rank == 0 and ranks > 1
        rates = _rates_of(self._reducer.settings.config) if chooses else None
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [os.cpu_count()]
        machine = _BOOT_ID.read_text() if _BOOT_ID.exists() else os.uname().nodename
        mine = json.dumps([machine, cores]).encode()
        told = self._reducer.messages.tell(mine, "cores").wait()
        self._ranks_per_core = max(told.count(mine) / len(cores), 1.0)
        self._chooser = None if rates is None else PathChooser(self._allowed, ranks, rates)
        for _ in range(_FIRST_PROBES if ranks > 1 else 0):
            self._probe(SMALLEST_PROBE)

    def end_round(self, launched: Launched, *, learns: bool) -> None:
        """All buckets of a round have arrived.

        learns: whether it tells what a round takes.

        Raises:
            ExchangeError: a rank took no part in a probe in time.
        """
        self._rounds += 1
        trailer = next(each for bucket, _ in launched if (each := _trailer_of(bucket)) is not None)
        chooser = self._chooser
        learns = learns and not self._first_round  # that one begins with backward
        self._first_round = False
        if chooser is not None and learns and trailer.heard is not None:
            began = time.monotonic()
            if began >= self._learns_again:
                self._learn(chooser, self._timings(launched), trailer)
                took = time.monotonic() - began
                self._learns_again = began + took / _LEARNING_SHARE
        if trailer.heard is not None:
            self._obey(trailer.heard)
        if chooser is not None:
            orders = _ORDERED.index(chooser.path) + 1.0, float(chooser.probe_bytes // _KILO)
            counting = _trailer_of(self._plan.dense[0])
            assert counting is not None, "the plan's path chooses"
            counting.orders = orders

    def explain(self) -> Explanation:
        """Return what is in use, and on rank 0 why."""
        if self._chooser is not None:
            return replace(self._chooser.explain(), rounds=self._rounds)
        alone = self._reducer.messages.size == 1
        return Explanation(self.path, why="one rank alone has no choice" if alone else "rank 0 chooses")

    def _timings(self, launched: Launched) -> list[Timing]:
        travelled = [
            Travelled(
                "dense" if isinstance(bucket, DenseBucket) else self.path,
                _ready_seconds(bucket),
                pending.submitted,
                pending.transport,
            )
            for bucket, pending in launched
        ]
        return timings(travelled, self._clock.began)

    def _learn(self, chooser: PathChooser, seen: Sequence[Timing], trailer: Trailer) -> None:
        ready = trailer.ready_seconds
        skew = max(max(ready.values()) - ready[self._reducer.messages.rank], 0.0)
        seconds = self._clock.last
        loads = [self._load(bucket) for bucket in self._plan.sparse]
        changed = chooser.observe(Round(seen, loads, seconds.computing, seconds.total - skew))
        if changed is not None:
            _log.info("%s", replace(changed, rounds=self._rounds))

    def _load(self, bucket: SparseBucket | WholeBucket) -> Load:
        config, states = self._reducer.settings.config, self._reducer.states
        layers = {name: states[name].layer for name in bucket.sizes if name in states}
        density = {name: layer.density for name, layer in layers.items() if layer is not None}
        entries = sum((density.get(name) or config.density) * size for name, size in bucket.sizes.items())
        return Load(
            sum(bucket.sizes.values()),
            entries,
            config.value_dtype,
            tensors=len(bucket.sizes),
            ranks_per_core=self._ranks_per_core,
        )

    def _obey(self, heard: Sequence[float]) -> None:
        path, kilobytes = round(heard[0]), round(heard[1])
        if path and _ORDERED[path - 1] != self.path:
            self.path = _ORDERED[path - 1]
            self._plan.choose(PATHS[self.path])
        if kilobytes:
            self._probe(kilobytes * _KILO)

    def _probe(self, size: int) -> None:
        """Have every rank send so many bytes, a part to each other one."""
        part = max(size // max(self._reducer.messages.size - 1, 1), 1)

        def begin(transport: Transport) -> Callable[[], list[Tensor]]:
            arriving = begin_allgather(transport, torch.zeros(part, dtype=torch.uint8))
            return lambda: list(arriving())

        pending = self._submit(begin, "a probe of the link")
        pending.wait()
        if self._chooser is not None:
            probe = pending.transport
            self._chooser.probed(Timing(0, probe.sent_bytes, probe.heard - probe.sent_at))


def _trailer_of(bucket: Bucket) -> Trailer | None:
    return bucket.trailer if isinstance(bucket, DenseBucket) else None


def _ready_seconds(bucket: Bucket) -> Any:
    if isinstance(bucket, SparseBucket | WholeBucket):
        return bucket.ready_seconds
    trailer = _trailer_of(bucket)
    return {} if trailer is None else trailer.ready_seconds


def _rates_of(config: CompressionConfig) -> WorkRates:
    return _measured(_Key(config, json.dumps(config.describe(), sort_keys=True)))


class _Key:
    """A configuration, equal to others that describe the same."""

    def __init__(self, config: CompressionConfig, text: str) -> None:
        self.config, self._text = config, text

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._text == self._text


@lru_cache
def _measured(key: _Key) -> WorkRates:
    return measure_rates(key.config, key.config.density, key.config.value_dtype)

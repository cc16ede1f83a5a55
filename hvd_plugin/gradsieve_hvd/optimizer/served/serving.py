"""One rank's part of a parameter server, and how it begins: who keeps which weights, and who orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch.nn import Parameter

from gradsieve_hvd.optimizer.sampling import ServedBatches
from gradsieve_hvd.server.decision_maker import DecisionMaker
from gradsieve_hvd.server.modes import policy
from gradsieve_hvd.server.partition import Partition
from gradsieve_hvd.server.ranges import Pairs
from gradsieve_hvd.server.sample_ledger import SampleLedger
from gradsieve_hvd.server.server_thread import ServerThread
from gradsieve_hvd.server.shard import Shard
from gradsieve_hvd.server.shard_optimizer import shard_of
from gradsieve_hvd.server.worker import Worker
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.mail import require_mailing

POLICIES: Final = MappingProxyType(
    {"bsp": "synchronous", "asp": "asp", "ssp": "ssp", "dssp": "dssp", "dasp": "dasp"}
)
"""Of each mode as users call it, its name in `gradsieve_hvd.server.modes.MODES`."""


@dataclass(slots=True)
class DealtBefore:
    """What goes on from one training to the next, of batches that are dealt.

    batches: this rank's. ledger: of all ranks, which is of use on rank 0. epochs: what was used when the last
    training ended, as rank 0 has told; None before.
    """

    batches: ServedBatches
    ledger: SampleLedger
    epochs: list[tuple[int, Pairs]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What ranks serve, and how.

    mode: a key of `POLICIES`. shards: the ranks that may keep weights. staleness_bound: see
    `gradsieve_hvd.server.modes.policy`. timeout: how long nothing may be heard, in seconds. equal_batches:
    whether all batches that a sampler deals are of one size. gives_back: whether the optimizer's state comes
    back to all ranks at the end. dealt: of trainings before this one, which go on after it.
    """

    mode: str
    shards: Sequence[int]
    staleness_bound: int | None = None
    timeout: float
    equal_batches: bool = False
    gives_back: bool = False
    dealt: DealtBefore | None = None

    def begin(
        self,
        optimizer: torch.optim.Optimizer,
        groups: torch.optim.Optimizer,
        named: Sequence[tuple[str, Parameter]],
        transport: Transport,
        batches: ServedBatches,
        began: float,
    ) -> tuple[ServerThread, Worker]:
        """Begin to serve this rank's part of the weights; all ranks do.

        Args:
            optimizer: whose class makes the updates. It takes over the state of ``groups``, which lose theirs
                where it is given back at the end.
            groups: the optimizer whose hyperparameters and state count.
            named: its parameters, sorted by name.
            transport: to the other ranks.
            batches: this rank's.
            began: when the first batch did, by the monotonic clock.
        """
        sizes = [p.numel() * p.element_size() for _, p in named]
        partition = Partition.balanced(sizes, self.shards)
        kept = partition.of_shard(transport.rank)
        optimizer.state, optimizer.param_groups = groups.state, groups.param_groups
        updates, copies = shard_of(optimizer, [p for _, p in named], kept)
        if self.gives_back:
            groups.state = defaultdict(dict)  # the shards have it now
        shard = Shard(copies, {number: named[number][0] for number in kept}, updates, transport.size)
        maker = None
        if transport.rank == 0:
            # Who is not dealt batches by us goes on with its own, whatever it is told.
            equal = self.equal_batches or not batches.dealt
            maker = DecisionMaker(
                policy(POLICIES[self.mode], self.staleness_bound, equal_batches=equal),
                transport.size,
                began,
                partition.shards,
                with_state=self.gives_back,
                samples=None if self.dealt is None else self.dealt.ledger,
            )
        mail = require_mailing(transport).open_mail()
        server = ServerThread(mail, shard, maker, partition.shards, self.timeout)
        return server, Worker(server, partition, self.timeout)

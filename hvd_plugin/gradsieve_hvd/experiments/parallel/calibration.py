"""What ranks with quotas compute for, before anything is trained."""

from __future__ import annotations

import time

from gradsieve_hvd.experiments.peers.contenders import ALONE
from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.peers.ranks import Ranks
from gradsieve_hvd.experiments.tasks import DealtTask

_SECONDS = 1.5


def calibrate(task: DealtTask, batch: int, ranks: Ranks) -> Row:
    """Compute nominal batches without any exchange, first all ranks at once, then one while the others wait;
    return the means of both, by rank. They are equal where quotas hold.
    """
    model = task.model(seed=0)

    def compute() -> None:
        model.zero_grad()
        task.loss_on(model, range(batch)).backward()

    def mean_seconds() -> float:
        compute()  # the first of a size asks for memory
        began = now = time.perf_counter()
        steps = 0
        while now < began + _SECONDS:
            compute()
            steps, now = steps + 1, time.perf_counter()
        return (now - began) / steps

    ranks.barrier()
    together = ranks.gather(mean_seconds())
    by_turns = []
    for turn in range(ranks.size):
        ranks.barrier()
        mine = mean_seconds() if turn == ranks.rank else None
        by_turns.append(ranks.gather(mine)[turn])
    return {"mode": ALONE, "computing_seconds": together, "computing_seconds_by_turns": by_turns}

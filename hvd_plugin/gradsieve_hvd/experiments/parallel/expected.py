"""How long real ranks wait by the simulator, which is told what calibrations measured, and no more. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.simulate.modes.stragglers import as_measured
from gradsieve_hvd.experiments.simulate.modes.waiting import waiting_share
from gradsieve_hvd.optimizer.served import SERVED
from gradsieve_hvd.server.modes import MODES, policy

from .contenders import ANSWERS_AS, CONTENDERS


def expected_waiting(training: Row, calibrations: Sequence[Row]) -> float | None:
    """Return the waiting share of a training as the simulator plays it for as long, on workers as its ranks
    were when they were calibrated; None of a mode that has no policy, or if nothing was measured for it.

    1. Batches: by rank, with a parameter server while pushes are answered in that mode, else while nothing
       is exchanged; the unit of time is their median. They scatter as they did while these were measured.
    2. What is added to each: by rank, a push and its answer in that mode; without a server an exchange that
       nobody waits in, the same for all.
    3. Of several calibrations the medians.

    Args:
        training: its row.
        calibrations: rows of its ranks.
    """
    contender = CONTENDERS[training["mode"]]
    if contender.mode not in MODES:
        return None
    if contender.mode in SERVED:
        shown = ANSWERS_AS[contender.mode]
        known = [row for row in calibrations if shown in row.get("answers", {})]  # older rows have none
        batches = [row["answers"][shown]["batch_seconds"] for row in known]
        exchanges = [row["answers"][shown]["seconds"] for row in known]
        scatters = [row["answers"][shown]["batch_scatter"] for row in known]
    else:
        known = [row for row in calibrations if "batch_scatter" in row]
        batches = [row["computing_seconds"] for row in known]
        exchanges = [[row["exchange_seconds"]] * row["ranks"] for row in known]
        scatters = [row["batch_scatter"] for row in known]
    if not known:
        return None
    computing, exchanging = _by_rank(batches), _by_rank(exchanges)
    unit = statistics.median(computing)
    scenario = as_measured(
        [each / unit for each in computing],
        [each / unit for each in exchanging],
        statistics.median(scatters),
    )
    mode, horizon = policy(contender.mode, **contender.settings), training["budget_seconds"] / unit
    return waiting_share(mode, scenario, training["ranks"], training["batch"], horizon)


def _by_rank(calibrated: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(of_rank) for of_rank in zip(*calibrated, strict=True)]

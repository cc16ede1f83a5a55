"""How long real ranks wait by the simulator, which is told what calibrations measured, and no more. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain

from gradsieve_hvd.experiments.peers.plan import Row
from gradsieve_hvd.experiments.simulate.modes.stragglers import as_measured
from gradsieve_hvd.experiments.simulate.modes.waiting import waiting_share
from gradsieve_hvd.launcher.stragglers import parse_straggler
from gradsieve_hvd.optimizer.served import SERVED
from gradsieve_hvd.server.modes import MODES, policy

from .contenders import CONTENDERS


def expected_waiting(training: Row, calibrations: Sequence[Row]) -> float | None:
    """Return the waiting share of a training as the simulator plays it for as long, on workers as its ranks
    were when they were calibrated in its mode; None of a mode that has no policy, if nothing was measured,
    and of ranks that are slow in turns: a calibration may be as short as a turn.

    1. Batches: by rank, of nominal size; the unit of time is their median. Each takes, against that, what one
       of those measured did: of several ranks in step the one decides that is latest this time, and the
       longest of a rank's batches are longer than a usual scatter would make them. Where ranks step together
       all take what they did in the same step: on one machine what holds up one holds up others.
    2. What is added to each: an exchange, by rank, in which nobody waits for others.
    3. Of several calibrations the medians, and all their batches.

    Args:
        training: its row.
        calibrations: rows of its ranks.
    """
    contender = CONTENDERS[training["mode"]]
    in_turns = any(not isinstance(parse_straggler(each).who, int) for each in training["slow"])
    if contender.mode not in MODES or in_turns:
        return None
    found = [row.get("exchanges", {}).get(training["mode"]) for row in calibrations]
    known = [each for each in found if each is not None]
    if not known:
        return None
    computing = _by_rank([each["batch_seconds"] for each in known])
    exchanging = _by_rank([each["seconds"] for each in known])
    unit = statistics.median(computing)
    scenario = as_measured(
        [each / unit for each in computing],
        [each / unit for each in exchanging],
        [list(chain(*of_rank)) for of_rank in zip(*(each["batch_ratios"] for each in known), strict=True)],
        together=contender.mode not in SERVED,
    )
    mode, horizon = policy(contender.mode, **contender.settings), training["budget_seconds"] / unit
    return waiting_share(mode, scenario, training["ranks"], training["batch"], horizon)


def _by_rank(calibrated: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(of_rank) for of_rank in zip(*calibrated, strict=True)]

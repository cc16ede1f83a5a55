"""A link is probed where its usual exchanges do not tell enough, in a part of the time of training."""

from __future__ import annotations

import pytest
from simulated_link import MBIT

from gradsieve_hvd.choice.costs import Load, WorkRates
from gradsieve_hvd.choice.link_estimate import Timing
from gradsieve_hvd.choice.path_chooser import PathChooser, Round

LOAD = Load(1_000_000, 10_000)
RATES = WorkRates(select=2e-8, encode=3e-8, decode=3e-8, add=1e-10, narrow=5e-9, factor=1e-9)
READY = {0: 0.2, 1: 0.2}
SENT = 200_000
STEP = 0.7
SLOW = SENT / (10 * MBIT)


def trained(*paths: str) -> PathChooser:
    """Return a choice that has found a link slow, and then hears of bounds alone."""
    chooser = PathChooser(paths, 4, RATES)
    for number in range(60):
        waited = SLOW if number < 30 else 0.0
        chooser.observe(round_of(Timing(0, SENT, SLOW, 1, READY, waited)))
    return chooser


def round_of(timing: Timing, seconds: float = STEP) -> Round:
    return Round([timing, Timing(0, 100, 5e-4, 1, READY)], [LOAD] * 6, 0.3, seconds)


def test_a_link_that_may_be_faster_than_known_is_probed():
    chooser = trained("allgather", "dense")
    assert chooser.path == "allgather"
    assert chooser.probe_bytes > 0


@pytest.mark.parametrize("pause", [10.0, 1000.0])
def test_a_pause_between_two_rounds_is_no_time_of_which_probes_get_a_part(pause):
    chooser = trained("allgather", "dense")
    probes = 0
    while size := chooser.probe_bytes:
        chooser.probed(Timing(0, size, 0.05))  # as long as they find nothing new, all that was saved
        for _ in range(8):
            chooser.observe(round_of(Timing(0, SENT, SLOW, 1, READY, 0.0), 1e-6))
        probes += 1
        assert probes < 100
    chooser.observe(round_of(Timing(0, SENT, SLOW, 1, READY, 0.0), pause))
    assert chooser.probe_bytes == 0

"""What a coordinator expects of other plans: arithmetic on what was measured, without torch."""

import json
import random
import statistics
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.control.expected import computing_seconds, exchange_seconds, harmonic
from gradsieve_hvd.control.fields import Fields, Refused
from gradsieve_hvd.control.plan import MODES
from gradsieve_hvd.control.telemetry import OtherDensity, RankTelemetry, Telemetry
from gradsieve_hvd.control.window import Window
from gradsieve_operator.adapt import read_window
from gradsieve_operator.adapt.plans import _PREFERRED

LINK = {"receivedBytesPerStep": 1000.0, "startUpSeconds": 0.001, "bytesPerSecond": 1e5}
OTHERS = tuple(OtherDensity(factor, 1000.0 * factor**0.9) for factor in (0.25, 0.5, 1.0, 2.0, 4.0))


def columns(rows):
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def jittered(slow, *, ranks=8, samples=32, seed=1):
    """Return samples of ranks of which the last is so many times as slow, and all have jitter of a tenth."""
    draw = random.Random(seed)
    speeds = [0.1] * (ranks - 1) + [0.1 * slow]
    return [[speed * draw.uniform(0.9, 1.1) for speed in speeds] for _ in range(samples)]


def test_the_modes_are_those_that_the_operator_chooses_and_ranks_know():
    assert set(computing_seconds([[1.0]], [1.0])) == set(_PREFERRED) <= set(MODES)


def test_shares_leave_the_jitter_of_all_ranks_which_the_slow_one_hides_in_step():
    seen, later = jittered(4), jittered(4, samples=4000, seed=2)
    work = columns(seen)
    found = computing_seconds(seen, work)["Balanced"]
    shares = [harmonic(work) / own for own in work]
    true = statistics.fmean(max(own * share for own, share in zip(row, shares, strict=True)) for row in later)
    by_statistics_alone = harmonic(work) + statistics.fmean(map(max, seen)) - max(work)
    assert found == pytest.approx(true, rel=0.02)
    assert by_statistics_alone < 0.95 * true


def test_a_rank_that_is_always_slow_is_waited_for_in_step_and_not_at_ones_own_rate():
    rows = [[0.1, 0.1, 0.1, 0.4]] * 5
    found = computing_seconds(rows, columns(rows))
    assert (found["Synchronous"], found["Local"]) == (0.4, pytest.approx(0.4))
    assert found["Adaptive"] == pytest.approx(4 / (3 / 0.1 + 1 / 0.4))


def test_more_bytes_take_what_the_link_takes_for_them():
    found = {each["factor"]: each["seconds"] for each in exchange_seconds(0.02, LINK, OTHERS)}
    assert found[1.0] == 0.02
    assert found[4.0] == pytest.approx(0.02 + 0.01 * (4**0.9 - 1))
    assert found[0.5] == pytest.approx(0.02 + 0.01 * (0.5**0.9 - 1))


def test_fewer_bytes_never_save_more_than_their_part():
    slower_than_measured = exchange_seconds(0.005, LINK, OTHERS)
    assert slower_than_measured[0]["seconds"] == pytest.approx(0.005 * 0.25**0.9)
    seconds = [each["seconds"] for each in slower_than_measured]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("link", "others"), [(None, OTHERS), (LINK, ()), (LINK, OTHERS[:2])])
def test_without_a_measured_link_or_bytes_of_other_densities_nothing_is_expected_of_them(link, others):
    assert exchange_seconds(0.02, link, others) == []


def window_of(numbers, works, others):
    window = Window()
    for second, work in enumerate(works):
        ranks = tuple(RankTelemetry(rank, f"h{rank}", own, 0.01) for rank, own in enumerate(work))
        window.take(Telemetry(1, 1, numbers, ranks, others=others), float(second))
    return window.to_json()


ABSURD = st.floats(0, 1e18) | st.sampled_from([0.0, 5e-324, 1e-300, 1e18])


@given(
    st.lists(st.lists(ABSURD, min_size=3, max_size=3), min_size=1, max_size=4),
    st.tuples(ABSURD, ABSURD, ABSURD, ABSURD),
    st.lists(st.tuples(st.floats(1e-6, 1e6), ABSURD), max_size=4),
)
def test_whatever_is_reported_what_is_expected_is_a_number_and_the_operator_reads_it(works, numbers, found):
    names = ("stepSeconds", "receivedBytesPerStep", "startUpSeconds", "bytesPerSecond")
    others = tuple(OtherDensity(factor, size) for factor, size in sorted([*found, (1.0, 5.0)]))
    served = window_of(dict(zip(names, numbers, strict=True)), works, others)
    text = json.dumps(served["expected"], allow_nan=False)
    assert len(text) < 4096
    for each in json.loads(text)["computingSeconds"].values():
        assert 0 <= each <= 1e6


@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4), min_size=2, max_size=8))
def test_what_follows_from_sound_measurements_is_believed(works):
    numbers = {"stepSeconds": max(map(max, works)) + 0.01, "waitSeconds": 0.01, **LINK}
    promised = read_window(window_of(numbers, works, OTHERS), 1.0).promised
    assert set(promised.computing) == set(_PREFERRED)
    assert promised.exchange_seconds(1.0) == pytest.approx(0.01)
    assert promised.exchange_seconds(2.0) > promised.exchange_seconds(0.5)


@pytest.mark.parametrize(
    "others",
    [
        [{"factor": 1.0}],
        [{"factor": 0, "receivedBytesPerStep": 1}],
        [{"factor": 1, "receivedBytesPerStep": -1}],
        [{"factor": 2, "receivedBytesPerStep": 1}, {"factor": 1, "receivedBytesPerStep": 1}],
        [{"factor": 1 + number, "receivedBytesPerStep": 1} for number in range(33)],
        "all",
    ],
    ids=lambda others: str(others)[:40],
)
def test_densities_that_make_no_sense_are_refused_with_their_sample(others):
    sample = {"generation": 1, "step": 1, "stepSeconds": 1, "waitSeconds": 0, "time": 0}
    with pytest.raises(Refused):
        Telemetry.read(Fields({**sample, "otherDensities": others}, "telemetry"))


def test_a_coordinator_needs_no_torch_for_it():
    program = (
        "import sys; import gradsieve_hvd.control.serve, gradsieve_hvd.control.expected; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

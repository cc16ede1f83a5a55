"""``gradsieve advise`` answers a newcomer, and writes its figures for programs."""

import json

import pytest
import torch
from click.testing import CliRunner

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.choice.costs import PATHS, Link, WorkRates
from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.advise.command import parse_count
from gradsieve_hvd.experiments.advise.modes import LATE, LATE_AT_TIMES, LOST_PER_LOCAL_STEP, modes
from gradsieve_hvd.experiments.advise.prediction import APPLIED, Question, link_of, predictions
from gradsieve_hvd.launcher.stragglers import parse_straggler
from gradsieve_operator.adapt import expected


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def advised(tmp_path, link, *more):
    file = tmp_path / "advice.json"
    arguments = ["--params", "25.6M", "--ranks", "8", "--link", link, "--step-ms", "200", "--json", str(file)]
    result = CliRunner().invoke(main, ["advise", *arguments, *more])
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text()), result.output


def test_every_path_has_a_row_and_the_fastest_comes_first(tmp_path):
    written, output = advised(tmp_path, "100mbit")
    rows = {row["path"]: row for row in written["rows"]}
    assert list(rows) == list(PATHS)
    ordered = sorted(rows, key=lambda path: rows[path]["step_seconds"])
    table = output.partition("Predicted")[0].splitlines()
    assert [line.split()[0] for line in table if line.strip().startswith(tuple(rows))] == ordered
    assert f"Predicted fastest: exchange='{ordered[0]}'" in output
    # 2 * 7/8 * 25.6e6 * 4 bytes at 12.5 MB/s
    assert rows["dense"]["wire_bytes"] == pytest.approx(179.2e6)
    assert rows["dense"]["step_seconds"] > 14.3
    assert all(rate > 0 for rate in written["rates"].values())


def test_paths_are_compared_by_what_they_apply(tmp_path):
    written, output = advised(tmp_path, "100mbit")
    lines = [line for line in output.splitlines() if "; applies " in line]
    named = [path for line in lines for path in PATHS if f"'{path}'" in line]
    assert {"scatter", "lowrank"} <= {*named}
    assert len(named) == len(APPLIED)
    for paths in APPLIED.values():
        rows = [row for row in written["rows"] if row["path"] in paths]
        assert min(rows, key=lambda row: row["step_seconds"])["path"] in named


def test_sharing_cores_and_many_tensors_make_selecting_slower(tmp_path):
    def allgather(*options):
        rows = advised(tmp_path, "100mbit", *options)[0]["rows"]
        return next(row for row in rows if row["path"] == "allgather")

    # as timed twice on a machine that may be busy: far apart, so that it does not matter
    assert allgather("--ranks-per-core", "50", "--tensors", "160")["work_seconds"] > (
        5 * allgather()["work_seconds"]
    )


def test_tensors_that_are_too_small_to_be_compressed_travel_whole_beside_the_others(tmp_path):
    bare, with_small = (
        advised(tmp_path, "100mbit", *options)[0]["rows"] for options in ((), ("--small-params", "1M"))
    )
    for one, other in zip(bare, with_small, strict=True):
        assert other["wire_bytes"] - one["wire_bytes"] == pytest.approx(7e6)  # 2 * 7/8 * 1e6 * 4 bytes


def test_of_what_everyone_sends_to_everyone_at_once_a_link_carries_less_among_more_than_two_ranks():
    def allgather(ranks):
        question = Question(25_600_000, ranks, compute_seconds=1e-6)
        rows = {row["path"]: row for row in predictions(question, link_of(10_000_000), RATES)}
        row = rows["allgather"]
        return row["exposed_seconds"] / row["wire_bytes"] * 1e7 / 8

    assert 1.0 < allgather(2) < 1.1
    assert allgather(3) > 1.15 * allgather(2)
    assert allgather(8) == pytest.approx(allgather(3), rel=0.05)


def test_what_an_unshaped_link_is_taken_for_is_said(tmp_path):
    written, output = advised(tmp_path, "none")
    assert "4gbit assumed" in output
    assert written["asked"]["bytes_per_second"] == 5e8


def test_it_says_where_compression_does_not_pay(tmp_path):
    _, output = advised(tmp_path, "none", "--step-ms", "20000")
    assert "Compression does not pay here" in output


@pytest.mark.parametrize(
    ("text", "count"), [("25.6M", 25_600_000), ("458k", 458_000), ("7B", 7_000_000_000), ("1_000", 1000)]
)
def test_numbers_of_parameters_are_read_as_people_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "-3M", "0", "nan", "inf", "M"])
def test_what_is_not_a_number_of_parameters_is_refused_with_an_example(text):
    with pytest.raises(ConfigurationError, match=r"write 25\.6M"):
        parse_count(text)


def test_what_no_model_and_no_cluster_has_is_refused_and_large_ones_are_answered_soon(tmp_path):
    with pytest.raises(ConfigurationError, match="more than 1,000,000,000,000 really meant"):
        parse_count("1e15")
    result = CliRunner().invoke(
        main, ["advise", "--params", "1M", "--ranks", "1000000", "--link", "none", "--step-ms", "1"]
    )
    assert result.exit_code == 2
    assert "1<=x<=1024" in result.output
    written, _ = advised(tmp_path, "1gbit", "--params", "70B", "--ranks", "256", "--slow", "wander:4x")
    assert len(written["rows"]) == len(PATHS)


RATES = WorkRates(select=1.5e-9, encode=1e-8, decode=5e-9, add=3e-10, narrow=1e-9, factor=1e-9)


def by_mode(bits_per_second, *slow):
    """Return rows by mode, and the best, for a model of 25 million parameters whose step takes 200 ms."""
    question, link = Question(25_000_000, 8, 0.2), Link(5e-4, bits_per_second / 8)
    rows = {
        row["mode"]: row for row in modes(question, [parse_straggler(each) for each in slow], link, RATES)
    }
    return rows, min(rows, key=lambda mode: rows[mode]["times_synchronous"])


def test_among_even_ranks_on_a_fast_link_no_mode_is_better_than_synchronous_training():
    rows, best = by_mode(1e10)
    assert best == "synchronous"
    assert rows["synchronous"]["times_synchronous"] == rows["balanced"]["times_synchronous"] == 1.0
    assert rows["local"]["times_synchronous"] > 1.1


def test_a_rank_that_is_always_slow_calls_for_shares_by_speed():
    rows, best = by_mode(1e10, "3:4x")
    assert best == "balanced"
    # Seven ranks and a quarter of one do what eight did; synchronous training takes four times as long.
    assert rows["balanced"]["step_seconds"] == pytest.approx(0.2 * 8 / (7 + 1 / 4), rel=0.5)
    assert rows["synchronous"]["step_seconds"] > 0.8
    assert rows["dasp"]["times_synchronous"] < 0.6


def test_ranks_that_are_slow_in_turns_call_for_not_waiting_for_them():
    assert by_mode(1e10, "transient:3x")[1] == "dasp"


def test_a_very_slow_link_calls_for_exchanging_seldom():
    assert by_mode(2e6)[1] == "local"


def test_modes_are_shown_with_the_best_first_and_written(tmp_path):
    written, output = advised(tmp_path, "1gbit", "--slow", "3:4x", "--slow", "wander:2x")
    assert written["asked"]["slow"] == ["3:4x", "wander:2x"]
    rows = sorted(written["modes"], key=lambda row: row["times_synchronous"])
    shown = [line.split()[0] for line in output.partition("Parallel modes")[2].splitlines() if line.strip()]
    names = [row["mode"] for row in rows]
    assert [each for each in shown if each in names][:4] == names
    assert "of which 3:4x, wander:2x" in output


@pytest.mark.parametrize("slow", ["9:4x", "8:2x", "somebody:2x", "3:0.5x"])
def test_slow_ranks_that_there_are_not_are_refused(slow):
    asked = ["--params", "1M", "--ranks", "8", "--link", "1gbit", "--step-ms", "10", "--slow", slow]
    result = CliRunner().invoke(main, ["advise", *asked])
    assert result.exit_code != 0
    assert "--slow" in str(result.exception) + result.output


@pytest.mark.parametrize("option", ["--step-ms", "--start-up-ms", "--ranks-per-core", "--hot", "--density"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_that_are_not_finite_are_usage_errors(option, value):
    asked = ["--params", "1M", "--ranks", "8", "--link", "1gbit", "--step-ms", "10", option, value]
    result = CliRunner().invoke(main, ["advise", *asked])
    assert result.exit_code == 2
    assert option in result.output


def test_efficiencies_are_those_that_the_operator_goes_by():
    assert (LATE, LATE_AT_TIMES) == (expected._LATE, expected._LATE_AT_TIMES)
    assert LOST_PER_LOCAL_STEP == expected._LOST_PER_LOCAL_STEP

"""``gradsieve bench modes``: trainings in parallel modes on real ranks, one of them slow."""

from __future__ import annotations

import json
from statistics import harmonic_mean, mean, median

import pytest
from click.testing import CliRunner
from links import skip_where_refused

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.parallel import commands
from gradsieve_hvd.experiments.parallel.commands import missing_trainings
from gradsieve_hvd.experiments.parallel.expected import expected_waiting
from gradsieve_hvd.experiments.parallel.tables import mean_staleness
from gradsieve_hvd.experiments.parallel.target import seconds_to_target

MODES = ["synchronous", "balanced", "local", "asp", "dasp"]
SERVED = ["asp", "dasp"]
SIMULATED = ["synchronous", "balanced", *SERVED]


def bench(*arguments):
    result = CliRunner().invoke(main, ["bench", "modes", *map(str, arguments)])
    skip_where_refused(result.exit_code, result.output)
    return result


SHORT, LONG = ["--seconds", 3], ["--seconds", 20]
OF_THE_TASK = (0.1, 0.9)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows, what was said, the command, its file. A training that the machine held up has more time then."""
    folder = tmp_path_factory.mktemp("modes")
    file, rates = folder / "rows.json", folder / "rates.json"
    rates.write_text(json.dumps({"dasp": [{}, {"learning_rate": 1e30, "momentum": 0}]}))
    where = ["--task", "digits", "--ranks", 2, "--slow", "1:3x", "--mode", ",".join(MODES), "--until", 0.3]
    wanted = [*where, "--rates", rates, "--judge-seconds", 0.4, "--timeout", 200, "--json", file]
    result = bench(*wanted, *SHORT)
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    seconds = SHORT
    if any(row.get("seconds_to_target", 0) is None and not row["diverged"] for row in rows):
        file.unlink()
        result, seconds = bench(*wanted, *LONG), LONG
        assert result.exit_code == 0, result.output
        rows = json.loads(file.read_text())["rows"]
    return rows, result.output, [*wanted, *seconds], file


@pytest.mark.timeout(300)
def test_every_mode_trains_and_reaches_the_target(measured):
    rows, said, *_ = measured
    alone, *trained, _, _ = rows
    assert [row["mode"] for row in trained] == MODES
    for row in trained:
        assert (row["task"], row["ranks"], row["slow"]) == ("digits", 2, ["1:3x"])
        assert (row["learning_rate"], row["momentum"]) == OF_THE_TASK
        assert 0 < row["seconds_to_target"] < row["curve"][-1][0]
        assert 0 <= row["waiting_share"] < 1
        assert 0 < min(row["late_step_seconds"]) <= max(row["late_step_seconds"]) < row["curve"][-1][0]
        assert 0 < min(row["late_computing_seconds"]) < max(row["late_step_seconds"])
        assert len(row["sent_bytes"]) == len(row["received_bytes"]) == 2
        assert row["mode"] in said
    assert len(alone["computing_seconds_by_turns"]) == 2
    assert "while the others wait" in said
    assert f"{harmonic_mean(alone['computing_seconds']) * 1e3:.0f} with batches by speed" in said


@pytest.mark.timeout(300)
def test_what_an_exchange_takes_is_measured_for_the_simulation_before_and_after_all_trainings(measured):
    rows, said, *_ = measured
    calibrations = [rows[0], rows[-1]]
    assert [row["mode"] for row in calibrations] == ["alone", "alone"]
    for row in calibrations:
        assert list(row["exchanges"]) == SIMULATED
        for mode, found in row["exchanges"].items():
            exchanges, batches = found["seconds"], found["batch_seconds"]
            assert len(exchanges) == len(batches) == len(found["batch_ratios"]) == 2
            assert min(exchanges) > 0
            assert 0 < min(batches) < max(batches)  # one rank is slow
            for ratios in found["batch_ratios"]:
                assert len(ratios) > 1
                assert mean(ratios) == pytest.approx(1, abs=0.001)
                assert 0 < min(ratios) < max(ratios)
            milliseconds = ", ".join(f"{each * 1e3:.0f}" for each in exchanges)
            what = "A push and its answer" if mode in SERVED else "An exchange"
            ratios = sorted(each for of_rank in found["batch_ratios"] for each in of_rank)
            out = len(ratios) // 20
            usual = f"take {ratios[out]:.2f} to {ratios[-out - 1]:.2f} of their rank's mean"
            told = f"{milliseconds}; nine of ten batches in between {usual}."
            assert f"{what} in {mode}, ms by rank: {told}" in said
    for mode in SERVED:
        answers, batches = (
            [each for row in calibrations for each in row["exchanges"][mode][name]]
            for name in ("seconds", "batch_seconds")
        )
        share = median(answers) / median(batches)
        there = {"asp": "asp", "dasp": "dasp-shares"}[mode]
        simulated = f"gradsieve simulate modes --mode {there} --answer {share:.2f}"
        assert f"To simulate {mode} with such answers: {simulated}" in said


@pytest.mark.timeout(300)
def test_what_ranks_wait_is_shown_beside_what_the_simulator_expects_of_these(measured):
    rows, said, *_ = measured
    calibrations = [rows[0], rows[-1]]
    for row in rows[1:-2]:
        expected = expected_waiting(row, calibrations)
        shown = "" if expected is None else f"{expected:.2f}"
        line = next(line for line in said.splitlines() if line.split()[:1] == [row["mode"]])
        assert f" {row['waiting_share']:.2f}   {shown:>9}  " in line
        assert (expected is None) == (row["mode"] == "local")


@pytest.mark.timeout(300)
def test_ranks_step_together_unless_the_mode_lets_gradients_miss_releases(measured):
    """Which rank then takes more steps, and how many, the machine's other work decides as well."""
    rows = {row["mode"]: row for row in measured[0][1:-2]}
    for mode in ("synchronous", "balanced", "local"):
        steps = rows[mode]["steps"]
        assert steps[0] == steps[1]
    assert any(missed > 0 for missed, _ in rows["asp"]["staleness"])


@pytest.mark.timeout(300)
def test_batches_are_as_large_as_the_modes_want_them(measured):
    """Those of modes that follow speeds: batches this small say little about speeds by quota."""
    for row in measured[0][1:-2]:
        sizes = [samples / steps for samples, steps in zip(row["samples"], row["steps"], strict=True)]
        if row["mode"] == "balanced":
            assert sum(sizes) == pytest.approx(64, rel=0.05)
            assert sum(row["late_batch"]) == 64
        elif row["mode"] != "dasp":  # but for the last batches of epochs
            assert sizes == pytest.approx([32, 32], rel=0.05)


@pytest.mark.timeout(300)
def test_a_server_counts_what_was_applied_and_bytes_both_ways(measured):
    for row in measured[0][1:-2]:
        if row["mode"] in ("asp", "dasp"):
            applied = sum(gradients for _, gradients in row["staleness"])
            assert 0 < applied <= sum(row["steps"])
            assert min(*row["pushed_bytes"], *row["reply_bytes"]) > 0
        else:
            assert row["staleness"] is row["pushed_bytes"] is row["reply_bytes"] is None


@pytest.mark.timeout(300)
def test_a_training_that_diverges_is_a_row_and_ends_no_other(measured):
    row = measured[0][-2]
    assert (row["mode"], row["learning_rate"], row["momentum"]) == ("dasp", 1e30, 0)
    assert row["diverged"]
    assert row["seconds_to_target"] is None
    assert "1 diverged" in measured[1]
    assert not any(other["diverged"] for other in measured[0][1:-2])


@pytest.mark.timeout(300)
def test_what_a_file_holds_is_not_trained_again(measured):
    rows, _, wanted, file = measured
    assert bench(*wanted).exit_code == 0
    assert json.loads(file.read_text())["rows"] == rows


def test_a_training_is_measured_unless_there_is_a_row_with_its_rate_and_momentum():
    rows = [{"mode": "asp", "seed": seed, "learning_rate": 1e30, "momentum": 0.9} for seed in (0, 1)]
    rows.append({"mode": "asp", "seed": 1, "learning_rate": 0.1, "momentum": 0.9})

    def missing(**rates):
        return missing_trainings(["asp"], range(2), rates, OF_THE_TASK, rows)

    assert missing() == (("asp", 0, 0.1, 0.9),)  # none is given: the task's
    assert missing(asp={"learning_rate": 1e30}) == ()
    assert missing(asp=[{"momentum": 0}, {}]) == (
        ("asp", 0, 0.1, 0),
        ("asp", 0, 0.1, 0.9),
        ("asp", 1, 0.1, 0),
    )


ROW = {
    "task": "digits", "ranks": 2, "link": "unshaped", "slow": ["1:4x"], "density": 0.01, "batch": 64,
    "until": 0.3, "budget_seconds": 3.0, "judge_seconds": 2.0, "server_ranks": None, "mode": "asp", "seed": 0,
    "learning_rate": OF_THE_TASK[0], "momentum": OF_THE_TASK[1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "trains"),
    [({}, False), ({"until": 0.9}, True), ({"budget_seconds": 30.0}, True), ({"judge_seconds": 5.0}, True),
     ({"judge_seconds": None}, False)],
)  # fmt: skip
def test_rows_of_another_target_or_time_are_not_taken_for_those_asked_for(
    other, trains, tmp_path, monkeypatch
):
    """Of a judgement's distance older rows tell nothing."""
    started = []
    monkeypatch.setattr(commands, "measure_on_ranks", lambda *given: started.append(given))
    monkeypatch.setattr(commands, "modes_table", lambda rows: f"{len(rows)} rows")
    row = {name: value for name, value in (ROW | other).items() if (name, value) != ("judge_seconds", None)}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"rows": [row]}))
    wanted = [
        "--task",
        "digits",
        "--ranks",
        2,
        "--mode",
        "asp",
        "--batch",
        64,
        "--until",
        0.3,
        "--seconds",
        3,
    ]
    result = bench(*wanted, "--json", file)
    assert result.exit_code == 0, result.output
    assert bool(started) == trains


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--mode", "fast"], "fast not known"),
        (["--slow", "4x"], "is not understood"),
        (["--until", "nan"], "not a finite number"),
        (["--json", "/nowhere/rows.json"], "there is no folder"),
    ],
)
def test_what_is_not_known_is_refused_before_ranks_start(wrong, said):
    result = bench("--until", 0.3, *wrong)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"fast": {}}', '{"asp": []}', '{"asp": 0.1}', '{"asp": {"lr": 0.1}}',
     '{"asp": {"learning_rate": NaN}}', '{"asp": [{"learning_rate": 0.1}, {"learning_rate": 0}]}',
     '{"asp": {"momentum": 1}}', '{"asp": {"momentum": -0.1}}', '{"asp": {"momentum": false}}'],
)  # fmt: skip
def test_settings_that_cannot_be_trained_with_are_refused(content, tmp_path):
    file = tmp_path / "rates.json"
    file.write_text(content)
    result = bench("--until", 0.3, "--rates", file)
    assert result.exit_code == 2
    assert "--rates" in result.output


@pytest.mark.parametrize(
    ("curve", "rising", "expected"),
    [
        pytest.param([(0, 4.0), (2, 3.0), (4, 1.0)], False, 3.0, id="between two points"),
        pytest.param([(0, 0.1), (2, 0.5), (4, 3.0)], True, 3.2, id="rising"),
        pytest.param([(0, 4.0), (2, 3.0)], False, None, id="never"),
        pytest.param([(1, 1.0), (2, 3.0)], False, 1, id="at once"),
        pytest.param([(0, 4.0), (2, 2.0), (4, 3.0)], False, 2.0, id="and left again"),
    ],
)
def test_a_target_is_reached_between_two_judgements(curve, rising, expected):
    assert seconds_to_target(curve, 2.0, rising=rising) == expected


def test_staleness_is_a_mean_over_gradients():
    assert mean_staleness([[0, 6], [3, 2]]) == 0.75
    assert mean_staleness([]) == 0.0

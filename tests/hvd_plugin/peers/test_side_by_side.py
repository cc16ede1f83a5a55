"""``gradsieve bench exchange`` and ``bench train`` measure every contender on ranks behind links."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from links import skip_where_refused

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.peers.contenders import CONTENDERS

pytestmark = pytest.mark.timeout(300)
ON_TWO_RANKS = ["--task", "digits", "--timeout", "200"]
TRAINED = ["ddp", "ddp#2", "powersgd-4", "dgc", "int4"]
TRAIN = ["train", *ON_TWO_RANKS, "--link", "none", "--ranks", "2", "--until", "0.8", "--max-steps", "60"]


def bench(*arguments):
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    skip_where_refused(result.exit_code, result.output)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    file = tmp_path_factory.mktemp("exchange") / "rows.json"
    short = ["--rounds", 1, "--steps", 1, "--recorded", 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "HOROVOD_CYCLE_TIME", "25"
        )  # its chatter is estimated, and would count on a slow machine
        said = bench("exchange", *ON_TWO_RANKS, "--links", "none", "--ranks", "2", *short, "--json", file)
    return {row["contender"]: row for row in json.loads(file.read_text())["rows"]}, said


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    rates = folder / "rates.json"
    rates.write_text(json.dumps({"ddp": 0.05}))
    wanted = [
        "--contenders",
        ",".join(TRAINED),
        "--seeds",
        1,
        "--rates",
        rates,
        "--json",
        folder / "rows.json",
    ]
    said = bench(*TRAIN, *wanted, "--plot", folder / "plot.png")
    return folder, wanted, said


def test_every_contender_takes_its_steps(exchanged):
    rows, _ = exchanged
    assert rows.keys() == {"alone", "allgather#2", *CONTENDERS}
    for row in rows.values():
        assert (row["link"], row["ranks"], row["task"]) == ("unshaped", 2, "digits")
        assert row["step_seconds"] > 0
        assert row["compute_seconds"] == rows["alone"]["step_seconds"]


def test_rows_tell_which_path_compressed_gradients_took(exchanged):
    rows, _ = exchanged
    assert [rows[name]["paths"] for name in ("ddp", "scatter")] == [[""], ["scatter"]]
    assert set(rows["auto"]["paths"]) <= {"allgather", "ring", "scatter", "dense"}


def test_interfaces_count_what_compression_saves(exchanged):
    rows, _ = exchanged
    sent = {name: row["wire_bytes"] for name, row in rows.items()}
    gradient = 458_250 * 4  # with two ranks a ring sends each element once
    for name in ("ddp", "dense"):
        # TCP's headers and acknowledgements included; Horovod's chatter, taken off, is an estimate.
        assert 0.8 * gradient < sent[name] < 1.2 * gradient
    for name in ("ddp-fp16", "fp16"):
        assert sent[name] < 0.6 * gradient
    for name in CONTENDERS.keys() - {"ddp", "dense", "fp16", "horovod", "ddp-fp16", "horovod-fp16"}:
        assert sent["alone"] < sent[name] < 0.2 * gradient


def test_a_table_says_how_far_two_of_a_kind_differ(exchanged):
    _, said = exchanged
    assert "A/A: allgather and allgather#2 differ by" in said


def test_what_a_file_holds_is_not_measured_again(trained):
    folder, wanted, _ = trained
    before = (folder / "rows.json").read_text()
    bench(*TRAIN, *wanted)
    assert (folder / "rows.json").read_text() == before


def test_contenders_train_until_the_target(trained):
    folder, _, said = trained
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == TRAINED
    for row in rows:
        steps, seconds, accuracy = row["curve"][-1]
        assert accuracy >= 0.8
        assert row["steps_to_target"] == steps <= 60
        assert row["seconds_to_target"] == pytest.approx(seconds, rel=0.5)  # a rank's own, and their mean
        assert row["bytes_per_step"] > 0
        assert row["contender"] in said
    assert (folder / "plot.png").stat().st_size > 10_000


def test_local_steps_train_to_what_dense_ones_reach_with_adamw(exchanged, tmp_path):
    timed = exchanged[0]
    (tmp_path / "rates.json").write_text(json.dumps({"dense": 0.002, "local-5": 0.003}))
    (tmp_path / "steps.json").write_text(
        json.dumps({"rows": [row | {"optimizer": "adamw"} for row in timed.values()]})
    )
    said = bench(
        *("train", *ON_TWO_RANKS, "--optimizer", "adamw", "--link", "none", "--ranks", 2, "--seeds", 1),
        *("--contenders", "local-5,dense", "--until", "dense@10", "--max-steps", 200, "--evaluate-steps", 5),
        *("--rates", tmp_path / "rates.json", "--step-times", tmp_path / "steps.json"),
        *("--json", tmp_path / "rows.json"),
    )
    dense, local = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["optimizer"], row["learning_rate"]) for row in (dense, local)] == [
        ("adamw", 0.002),
        ("adamw", 0.003),
    ]
    assert (dense["steps"], dense["curve"][-1][-1]) == (10, dense["until"])
    assert local["until"] == dense["until"]
    assert local["steps_to_target"] % 5 == 0
    assert local["bytes_per_step"] < dense["bytes_per_step"] / 20
    for row in (dense, local):
        on_link, measured = row["on_links"]["unshaped"], timed[row["contender"]]
        assert on_link["seconds_to_target"] == row["steps_to_target"] * measured["step_seconds"]
        assert on_link["bytes_per_sample"] == measured["wire_bytes"] / 32
    assert said.count("digits with adamw, 2 ranks, link unshaped") == 2  # as measured, and by the step times


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--contenders", "dense,local-15", "--until", "dense@10"], "every 15 steps of local-15"),
        (["--contenders", "ring", "--until", "dense@10"], "dense must be among"),
        (["--contenders", "dense", "--until", "dense@12"], "not a multiple of --evaluate-steps 5"),
        (["--contenders", "dgc", "--until", "2.6", "--optimizer", "adamw"], "it applies momentum itself"),
    ],
)
def test_what_means_nothing_is_refused_before_ranks_start(arguments, why):
    result = CliRunner().invoke(main, ["bench", "train", *arguments])
    assert result.exit_code != 0
    assert why in " ".join(f"{result.output} {result.exception}".split())


def test_rates_are_those_of_the_file_or_the_tasks(trained):
    rows = json.loads((trained[0] / "rows.json").read_text())["rows"]
    assert [row["learning_rate"] for row in rows] == [0.05, 0.05, 0.1, 0.1, 0.1]


def test_without_contenders_those_are_compared_that_go_together(trained, tmp_path):
    """The file has all there are, so that nothing is left to be trained."""
    row = json.loads((trained[0] / "rows.json").read_text())["rows"][-1]
    every = [f"{name}{again}" for name in CONTENDERS for again in ("", "#2")]
    rows = [row | {"contender": name, "seed": seed, "steps": 10} for name in every for seed in range(3)]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    bench(*TRAIN, "--json", tmp_path / "rows.json")
    bench(*TRAIN[: TRAIN.index("--until")], "--until", "dense@10", "--json", tmp_path / "rows.json")


def test_two_of_a_kind_train_alike(trained):
    one, other = json.loads((trained[0] / "rows.json").read_text())["rows"][:2]
    assert [value for _, _, value in one["curve"]] == [value for _, _, value in other["curve"]]

"""``gradsieve bench convergence`` trains to the end, compares at equal bytes, and says what it saw."""

import json

import pytest
import torch
from click.testing import CliRunner

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.bench import convergence
from gradsieve_hvd.experiments.bench.convergence_table import summaries
from gradsieve_hvd.experiments.tasks import TASKS


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    file = tmp_path_factory.mktemp("convergence") / "rows.json"
    arguments = ["--task", "digits", "--steps", "12", "--seeds", "2", "--json", str(file)]
    chosen = ["topk", "laplace", "layered", "importance"]
    for method in chosen:
        arguments += ["--method", method]
    result = CliRunner().invoke(main, ["bench", "convergence", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text())["rows"], result.output


def test_every_training_has_a_row(run):
    rows, output = run
    methods = ["dense", "topk", "laplace", "layered", "importance"]
    wanted = [(name, None) for name in methods] + [("topk", "layered"), ("topk", "importance")]
    for seed in (0, 1):
        assert [(r["method"], r["matches"]) for r in rows if r["seed"] == seed] == wanted
    assert all(method in output for method in methods)


def test_adaptive_methods_are_compared_at_equal_bytes(run):
    rows, _ = run
    for row in rows:
        if row["matches"] is None:
            continue
        (own,) = [r for r in rows if r["method"] == row["matches"] and r["seed"] == row["seed"]]
        assert row["payload_bytes"] == pytest.approx(own["payload_bytes"], rel=0.02)
        assert row["retrained"] == (row["density"] != own["density"])


def test_rules_report_what_they_kept_of_what_was_asked_for(run):
    for row in run[0]:
        if row["method"] == "dense":
            assert row["layers"] == []
            continue
        assert [layer["layer"] for layer in row["layers"]] == ["0.weight", "2.weight"]
        for layer in row["layers"]:
            assert layer["selections"] == 12 * 4
            assert layer["outside"] == layer["empty"] == 0
            assert row["method"] != "topk" or layer["inexact"] == 0


@pytest.fixture(scope="module")
def adamw(tmp_path_factory):
    file = tmp_path_factory.mktemp("adamw") / "rows.json"
    arguments = ["--task", "digits", "--steps", "6", "--seeds", "1", "--method", "laplace"]
    arguments += ["--optimizer", "adamw", "--beta1", "0"]
    arguments += ["--learning-rate", "0.001", "--learning-rate", "0.1"]
    arguments += ["--values", "int4", "--min-elements", "100000"]
    result = CliRunner().invoke(main, ["bench", "convergence", *arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text())["rows"], result.output


def test_an_optimizer_and_its_learning_rates_can_be_chosen(adamw):
    rows, output = adamw
    assert [(row["method"], row["learning_rate"]) for row in rows] == [
        (method, rate) for rate in (0.001, 0.1) for method in ("dense", "laplace")
    ]
    for row in rows:
        assert (row["optimizer"], row["beta1"], row["momentum"]) == ("adamw", 0.0, None)
        assert (row["value_dtype"], row["min_elements"]) == ("int4", 100_000)
    assert [layer["layer"] for layer in rows[1]["layers"]] == ["2.weight"]
    assert "laplace, rate 0.1" in output


def test_a_training_is_compared_with_dense_training_at_its_own_learning_rate(adamw):
    rows, _ = adamw
    for dense, laplace, summary in zip(rows[::2], rows[1::2], summaries(rows)[1::2], strict=True):
        assert summary["learning_rate"] == dense["learning_rate"] == laplace["learning_rate"]
        assert summary["behind"] == pytest.approx(dense["value"] - laplace["value"])


@pytest.mark.parametrize(("optimizer", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_the_chosen_optimizer_is_the_one_that_trains(optimizer, kind):
    task = TASKS["digits"]()
    setup = convergence.Setup(ranks=1, steps=1, optimizer=optimizer, learning_rate=0.03, beta1=0.5)
    made = setup.make_optimizer(task, task.model(0))
    assert type(made) is kind
    assert {group["lr"] for group in made.param_groups} == {0.03}
    assert optimizer == "sgd" or made.param_groups[0]["betas"] == (0.5, 0.999)


def test_a_summary_compares_means_over_the_same_seeds(run):
    rows, _ = run
    by_name = {(each["method"], each["matches"]): each for each in summaries(rows)}
    dense = by_name["dense", None]
    assert (dense["behind"], dense["sent"], dense["near_dense"]) == (0, 1, True)
    laplace = by_name["laplace", None]
    assert laplace["behind"] == pytest.approx(dense["mean"] - laplace["mean"])
    assert laplace["selections"] == 2 * 2 * 12 * 4
    assert 0.02 < laplace["sent"] < 0.04


def test_a_loss_is_compared_relative_to_dense():
    row = {"task": "t", "matches": None, "metric": "loss", "density": 1, "sent_bytes": 1, "layers": []}
    row |= {"learning_rate": None}
    rows = [row | {"method": m, "seed": 0, "value": v} for m, v in [("dense", 2.0), ("topk", 2.03)]]
    assert summaries(rows)[1]["behind"] == pytest.approx(0.015)
    assert not summaries(rows)[1]["near_dense"]


def test_every_rule_that_one_can_choose_is_trained():
    from gradsieve import Compression

    makers = {name for name in vars(Compression) if not name.startswith("_")}
    assert set(convergence.METHODS) == makers

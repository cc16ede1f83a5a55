"""``gradsieve reproduce`` measures the papers' claims; its verdicts follow from the figures."""

import json

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.reproduce import layered, selection
from gradsieve_hvd.experiments.reproduce.finding import Finding


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def reproduced(tmp_path, *arguments):
    file = tmp_path / "claims.json"
    call = ["reproduce", "--quick", "--seeds", "1", "--json", str(file), *arguments]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text()), result.output


def finding(figure, **bounds):
    texts = {"says": "", "condition": "", "shown": ""}
    return Finding(figure=figure, **texts, **({"holds_from": 1.0, "strongly_from": 2.0} | bounds))


@given(st.floats(allow_nan=False), st.floats(0.5, 1.0), st.floats(1.0, 2.0))
def test_a_verdict_is_what_the_figure_says(figure, holds_from, strongly_from):
    verdict = finding(figure, holds_from=holds_from, strongly_from=strongly_from).verdict
    assert (verdict == "not here") == (figure < holds_from)
    assert (verdict == "holds more strongly") == (figure >= strongly_from)


@pytest.mark.parametrize("figure", [None, float("nan")])
def test_what_could_not_be_measured_does_not_hold(figure):
    assert finding(figure).verdict == "not here"


def test_claim_a_compares_dense_fixed_and_layered_training_at_equal_bytes(tmp_path):
    content, output = reproduced(tmp_path, "--claim", "A", "--plot", str(tmp_path / "plot.png"))
    rows = content["measurements"]["A"]["trainings"]
    names = [(row["method"], row["matches"]) for row in rows]
    assert names == [("dense", None), ("topk", None), ("layered", None), ("topk", "layered")]
    assert rows[3]["sent_bytes"] == pytest.approx(rows[2]["sent_bytes"], rel=0.02)
    assert [row["claim"] for row in content["rows"]] == ["A"] * 4
    assert all(row["verdict"] in output for row in content["rows"])
    assert content["quick"]
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_claim_e_times_selections_and_trains_both(tmp_path):
    content, output = reproduced(tmp_path, "--claim", "E")
    measured = content["measurements"]["E"]
    seconds = {row["method"]: row["seconds"] for row in measured["selections"]}
    with_torch, ours = {"torch.topk", "torch.kthvalue", "sampled"}, {"topk", "sampled, ours", "laplace"}
    assert set(seconds) == with_torch | ours
    assert {row["method"] for row in measured["selections"] if row["kernel"] == "cpu"} == ours
    faster = seconds["topk"] / seconds["laplace"]
    assert content["rows"][0]["figure"] == pytest.approx(faster)
    assert content["rows"][1]["figure"] == pytest.approx(seconds["sampled, ours"] / seconds["laplace"])
    assert f"{faster:.2f} times" in output
    assert {row["method"] for row in measured["trainings"]} == {"dense", "topk", "laplace"}


def training(method, matches=None, *, value, curve):
    return {"method": method, "matches": matches, "value": value, "curve": curve}


def trainings(layered_value, layered_curve):
    late = [[100, 1000.0, 0.90], [200, 2000.0, 0.96]]
    return [
        training("dense", value=0.965, curve=[[100, 90_000.0, 0.96]]),
        training("topk", value=0.958, curve=late),
        training("topk", "layered", value=0.958, curve=late),
        training("layered", value=layered_value, curve=layered_curve),
    ]


def test_a_layered_training_that_is_better_in_all_holds_more_strongly():
    better = trainings(0.99, [[50, 500.0, 0.96]])
    assert {each.verdict for each in layered.findings(better)} == {"holds more strongly"}


def test_a_layered_training_like_fixed_density_leads_in_nothing():
    same = layered.findings(trainings(0.958, [[200, 2000.0, 0.96]]))
    assert [each.verdict for each in same] == ["holds", "not here", "not here", "not here"]
    assert [each.figure for each in same[2:]] == [1.0, 1.0]


def test_an_accuracy_that_was_never_reached_gives_no_ratio():
    never = layered.findings(trainings(0.90, [[200, 2000.0, 0.90]]))
    assert [each.figure for each in never[2:]] == [None, None]
    assert {each.verdict for each in never} == {"not here"}


@pytest.mark.parametrize(
    ("laplace_seconds", "verdict"),
    [(0.5, "holds more strongly"), (1 / 1.3, "holds"), (1.0, "not here")],
)
def test_speed_is_judged_against_the_papers_ratio(laplace_seconds, verdict):
    seconds = {"topk": 1.62, "sampled, ours": 1.0, "sampled": 9.0, "laplace": laplace_seconds}
    rows = [{"method": name, "seconds": value} for name, value in seconds.items()]
    same = [{"method": method, "value": 0.97} for method in ("topk", "laplace")]
    found = selection.findings(rows, same)
    assert found[1].verdict == verdict
    assert found[0].figure == pytest.approx(1.62 / laplace_seconds)
    assert found[2].verdict == "holds"

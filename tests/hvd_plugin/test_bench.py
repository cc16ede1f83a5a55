"""``gradsieve bench`` measures what it says, and says it in the fields that others read."""

import json
import re

import pytest
import torch
from click.testing import CliRunner

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.bench.contenders import contenders
from gradsieve_hvd.experiments.bench.exchanges import paths

ELEMENTS = 30_000


@pytest.fixture(autouse=True)
def own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows_of(arguments, file):
    result = CliRunner().invoke(main, ["bench", *arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text())["rows"], result.output


@pytest.fixture(scope="module")
def selection(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "rows.json"
    arguments = ["selection", "--elements", str(ELEMENTS), "--rounds", "2", "--gradients", "normal"]
    return rows_of(arguments, file)


def test_every_contender_has_a_row_with_time_and_floor(selection):
    rows, output = selection
    assert [row["method"] for row in rows] == list(contenders(ELEMENTS, 0.01))
    for row in rows:
        assert row["kernel"] in {"torch", "cpu"}
        assert row["floor_seconds"] > 0
        assert 0 < row["seconds"] <= row["median_seconds"]
        assert row["extra_bytes"] >= 0
        assert row["method"] in output


def test_exact_rules_keep_k_and_send_the_most_energy(selection):
    rows = {row["method"]: row for row in selection[0]}
    assert rows["torch.topk"]["kept_ratio"] == rows["topk"]["kept_ratio"] == 1.0
    assert rows["topk"]["relative_energy"] == pytest.approx(rows["torch.topk"]["relative_energy"])
    assert rows["group_topk"]["relative_energy"] < rows["topk"]["relative_energy"]


@pytest.mark.parametrize("name", contenders(ELEMENTS, 0.01))
def test_what_a_contender_sends_and_what_it_keeps_is_what_it_was_given(name):
    contender = contenders(ELEMENTS, 0.01)[name]()
    gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    sent = contender.sent(contender.step(gradient))
    total = sent.double().sum() + contender.rest().double().sum()
    assert total.item() == pytest.approx(gradient.double().sum().item(), abs=1e-4)
    assert contender.rest().count_nonzero() == ELEMENTS - sent.numel()


def test_the_codec_bench_counts_headers_and_sees_halves_smaller(tmp_path):
    rows, _ = rows_of(["codec", "--task", "digits", "--density", "0.01"], tmp_path / "rows.json")
    by_codec = {row["codec"]: row for row in rows}
    assert by_codec["float16"]["bytes_per_kept"] < by_codec["float32"]["bytes_per_kept"]
    for row in rows:
        assert row["encode_seconds"] > 0
        assert row["decode_seconds"] > 0
        assert row["kept"] >= row["tensors"]


def test_every_path_between_ranks_has_its_bytes_and_its_result(tmp_path):
    rows, output = rows_of(["paths", "--steps", "2", "--ranks", "3"], tmp_path / "rows.json")
    by_path = {row["path"]: row for row in rows}
    assert list(by_path) == list(paths([], 3, 0.01, "float32"))
    dense = by_path["dense"]
    assert dense["bytes_per_step"] == pytest.approx(dense["dense_bytes_per_step"], rel=0.001)
    for name, row in by_path.items():
        assert name in output
        if name != "dense":  # whose headers come on top
            assert 0 < row["bytes_per_step"] < row["dense_bytes_per_step"]
    assert by_path["allgather"]["applied_share"] == by_path["ring"]["applied_share"] > 0.01
    for name in ("ring, k applied", "scatter, k applied"):
        # A block more or less at the edges.
        assert by_path[name]["applied_share"] == pytest.approx(0.01, rel=0.05)
    for name in ("dense", "fp16", "bf16", "lowrank, rank 1", "lowrank, rank 4"):
        assert by_path[name]["applied_share"] > 0.3  # a model's first gradients have zeros


def test_what_paths_send_is_simulated_up_to_256_ranks_with_the_crossings(tmp_path):
    rows, output = rows_of(["bytes", "--elements", "1000000"], tmp_path / "rows.json")
    assert [row["ranks"] for row in rows] == [2, 4, 8, 16, 32, 64, 128, 256]
    two, most = rows[0], rows[-1]
    assert two["ring"] > two["allgather"]
    assert most["ring"] < most["allgather"]
    assert most["scatter, k applied"] < two["allgather"] * 2.5
    (since,) = re.findall(r"ring sends less than allgather from (\d+) ranks on", output)
    assert 32 < int(since) < 102  # what six bytes an entry would make of it

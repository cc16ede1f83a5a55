"""``gradsieve report gradients`` shows what is there: its figures obey the laws of what they measure."""

import json

import pytest
import torch
from click.testing import CliRunner
from scipy import stats
from sole_tensor import SoleTensor
from torch import nn

from gradsieve import Compression, DensityWarmup, decode
from gradsieve.kernels import as_accumulated
from gradsieve.selectors import LaplaceSelector
from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.report.counting import CountedSum
from gradsieve_hvd.experiments.report.figures import sample_rows, selection_rows, tables
from gradsieve_hvd.experiments.report.fits import (
    POOLED,
    distance,
    fit,
    laplace_quantiles,
    layer_fits,
    normal_quantiles,
)
from gradsieve_hvd.experiments.report.fits import shape as shape_of
from gradsieve_hvd.experiments.report.importance import cosine, gradient_cosines, top_share
from gradsieve_hvd.experiments.report.layer import WatchedRank
from gradsieve_hvd.experiments.report.layered import train_layered
from gradsieve_hvd.experiments.report.task import SampledDigits
from gradsieve_hvd.experiments.report.training import train

BAND = (0.8, 1.25)
STEPS = 4


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def report():
    return train(Compression.laplace(0.01), STEPS, seed=0)


def one_layer():
    return nn.Linear(200, 100, bias=False)


def numbers_of(distribution, number=20_000, seed=0):
    return torch.tensor(distribution.rvs(size=number, random_state=seed), dtype=torch.float32)


@pytest.mark.parametrize(
    ("quantiles", "distribution"), [(laplace_quantiles, stats.laplace), (normal_quantiles, stats.norm)]
)
def test_distances_are_scipys(quantiles, distribution):
    sample = numbers_of(stats.t(3), 1_001).double()
    levels = (torch.arange(1_001, dtype=torch.float64) + 0.5) / 1_001
    expected = stats.wasserstein_distance(sample, distribution.ppf(levels))
    assert distance(sample.sort().values, quantiles(1_001)) == pytest.approx(expected, rel=1e-9)


def test_laplace_samples_are_closer_to_the_laplace_and_normal_ones_to_the_normal_distribution():
    laplace, normal = fit(numbers_of(stats.laplace), 0.01), fit(numbers_of(stats.norm), 0.01)
    assert laplace.laplace < 0.05 < laplace.normal
    assert normal.normal < 0.05 < normal.laplace


def test_the_estimate_finds_k_of_laplace_samples():
    assert fit(numbers_of(stats.laplace, 100_000), 0.01).guess_ratio == pytest.approx(1, abs=0.1)


def test_fits_do_not_depend_on_the_scale():
    sample = numbers_of(stats.laplace)
    one, other = fit(sample, 0.01), fit(sample * 2.0**-20, 0.01)
    assert other.laplace == pytest.approx(one.laplace)
    assert other.normal == pytest.approx(one.normal)
    assert other.guess_ratio == one.guess_ratio


def test_zeros_have_no_distance():
    zeros = fit(torch.zeros(100), 0.01)
    assert (zeros.laplace, zeros.normal, zeros.guess_ratio) == (0, 0, 0)


def test_all_layers_come_last_and_hold_every_element():
    layers = {"a": torch.randn(300), "b": torch.randn(200)}
    fits = layer_fits(layers, layers, 0.01, step=7)
    assert [(each.layer, each.elements, each.step) for each in fits] == [
        ("a", 300, 7),
        ("b", 200, 7),
        (POOLED, 500, 7),
    ]


def test_densities_integrate_to_one():
    shape = shape_of(numbers_of(stats.laplace))
    width = float(shape.points[1] - shape.points[0])
    for density in (shape.sample, shape.laplace, shape.normal):
        assert float(density.sum()) * width == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("warm", [None, 3.0])
def test_counting_changes_no_selection(warm):
    sample = numbers_of(stats.laplace)
    counted = CountedSum(as_accumulated(sample))
    one = LaplaceSelector(BAND).select(counted, 0.01, warm)
    other = LaplaceSelector(BAND).select(sample, 0.01, warm)
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.values, other.values)
    assert one.threshold == other.threshold


def test_a_threshold_that_fits_takes_one_count_in_one_pass_and_a_cold_start_one_pass_more():
    sample = numbers_of(stats.laplace, 100_000)
    cold = CountedSum(as_accumulated(sample))
    threshold = LaplaceSelector(BAND).select(cold, 0.01, None).threshold
    warm = CountedSum(as_accumulated(sample))
    LaplaceSelector(BAND).select(warm, 0.01, threshold)
    assert (warm.asked.counts, warm.asked.passes) == (1, 1)
    assert (cold.asked.counts, cold.asked.passes) == (1, 2)  # the mean, too, is a pass


def test_a_threshold_too_low_takes_counts_and_one_too_high_takes_passes():
    low, high = (CountedSum(as_accumulated(numbers_of(stats.laplace))) for _ in range(2))
    LaplaceSelector(BAND).select(low, 0.01, 0.5)
    assert low.asked.passes == 1 < low.asked.counts
    LaplaceSelector(BAND).select(high, 0.01, 1000.0)
    assert high.asked.passes > 1


@pytest.mark.parametrize("warmup", [None, DensityWarmup(steps=3)], ids=["constant density", "warm-up"])
def test_watching_a_layer_changes_nothing_of_what_it_sends(warmup):
    config = Compression.laplace(0.01, warmup=warmup)
    watched, plain = WatchedRank(one_layer(), config), SoleTensor(config, 20_000)
    for step in range(5):
        gradient = numbers_of(stats.laplace, 20_000, seed=step).view(100, 200)
        exchanged = watched.exchange({"weight": gradient}, step)
        arrived, (record,) = exchanged.arrived["weight"], exchanged.seen
        payload = decode(plain.compress(gradient, step=step), 20_000)
        plain.commit()
        expected = torch.zeros(20_000)
        expected[payload.indices] = payload.values
        assert torch.equal(arrived, expected.view(100, 200))
        assert record.kept == plain.kept


def test_what_arrives_and_what_is_left_is_what_was_given():
    rank = WatchedRank(one_layer(), Compression.laplace(0.01))
    given, arrived_in_all = torch.zeros(20_000), torch.zeros(20_000)
    for step in range(5):
        gradient = numbers_of(stats.laplace, 20_000, seed=step)
        exchanged = rank.exchange({"weight": gradient.view(100, 200)}, step)
        arrived, accumulated = exchanged.arrived["weight"].flatten(), exchanged.accumulated["weight"]
        given += gradient
        arrived_in_all += arrived
    left = accumulated - arrived
    # fp32 sums of five numbers below 20, added in another order
    torch.testing.assert_close(arrived_in_all + left, given, rtol=0, atol=1e-5)


def test_the_whole_batch_points_like_itself_and_larger_shares_hold_more_losses():
    task = SampledDigits()
    model = task.model(seed=0)
    losses = task.sample_losses(model, step=0, seed=0)
    cosines = gradient_cosines(losses, [*model.parameters()], [0.1, 0.5, 1.0])
    assert cosines[2] == pytest.approx(1, abs=1e-6)
    assert all(-1 <= each <= 1 for each in cosines)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_top_share_is_rounded_up_and_holds_the_largest_losses():
    losses = torch.tensor([3.0, 1.0, 2.0, 0.0, 5.0, 4.0, 6.0, 7.0, 8.0, 9.0])
    assert top_share(losses, 0.25).tolist() == [9, 8, 7]
    assert top_share(losses, 0.1).tolist() == [9]


def test_nothing_has_no_direction():
    assert cosine(torch.zeros(3), torch.ones(3)) == 0
    assert cosine(torch.ones(3), -torch.ones(3)) == pytest.approx(-1)


def test_the_first_batch_begins_with_the_images_of_the_demos_ranks():
    task = SampledDigits()
    model = task.model(seed=0)
    with torch.no_grad():
        losses = task.sample_losses(model, step=0, seed=0)
        ranks = [float(task.loss(model, 0, rank, seed=0)) for rank in range(4)]
    assert float(losses[:128].mean()) == pytest.approx(sum(ranks) / 4, rel=1e-5)


def test_every_selection_of_a_training_is_within_the_band(report):
    assert len(report.selections) == 2 * STEPS
    for each in report.selections:
        assert BAND[0] <= each.kept_ratio <= BAND[1]
        assert each.threshold > 0
        assert each.cold.counts >= 1
        assert (each.warm is None) == (each.step == 0)
    for row in selection_rows(report.selections, BAND):
        assert row["in_band"] == 1
        assert row["selections"] == STEPS - (row["start"] == "warm")


def test_one_narrower_band_is_missed(report):
    rows = selection_rows(report.selections, (1.0, 1.0))
    assert min(row["in_band"] for row in rows) < 1


def test_an_epochs_samples_are_counted_once(report):
    (row,) = sample_rows(report.batches)
    assert row["samples"] == STEPS * report.batches[0].losses.numel()
    assert row["loss_p10"] < row["loss_p50"] < row["loss_p90"]


def test_the_layered_rules_densities_move_within_the_models_budget():
    # While all layers want more at once, the budget leaves each where it is: up to step 65, or to step 20, as
    # the processor rounds.
    config, steps = Compression.layered(0.01, adapt_steps=5, dead_band=0), 100
    records = train_layered(config, steps, seed=0)
    assert len({record.density for record in records}) > 1
    for step in range(steps):
        own = [record for record in records if record.step == step]
        spent = sum(record.density * record.elements for record in own)
        assert spent <= 0.01 * sum(record.elements for record in own) * (1 + 1e-9)
        assert all(BAND[0] <= record.kept_ratio <= BAND[1] for record in own)


def test_tables_fit_into_eighty_columns(report):
    from rich.console import Console

    wide = Console(width=200)
    for table in tables(report):
        assert wide.measure(table).maximum <= 80


def test_the_command_writes_plots_and_figures(tmp_path):
    file, out = tmp_path / "figures.json", tmp_path / "plots"
    arguments = ["report", "gradients", "--epochs", "1", "--out", str(out), "--json", str(file)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    names = {"fits.png", "selections.png", "thresholds.png", "samples.png"}
    assert {path.name for path in out.iterdir()} == names
    assert all(path.stat().st_size > 10_000 for path in out.iterdir())
    figures = json.loads(file.read_text())
    assert figures["setting"]["steps"] == len(figures["batches"]) == 11
    assert {row["layer"] for row in figures["rows"]["fits"]} == {"0.weight", "2.weight", POOLED}
    assert {row["layer"] for row in figures["rows"]["layered"]} == {"0.weight", "2.weight"}
    for row in figures["rows"]["fits"]:
        assert row["layer"] in result.output
    *shown, _json, _plots = result.output.splitlines()  # those two name folders of any length
    assert max(map(len, shown)) <= 80

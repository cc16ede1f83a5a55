"""``gradsieve simulate modes``: policies on a virtual clock, with real gradients."""

import dataclasses
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve_hvd.cli import main
from gradsieve_hvd.experiments.simulate.modes import timeline
from gradsieve_hvd.experiments.simulate.modes.perceptron import Perceptron
from gradsieve_hvd.experiments.simulate.modes.rows import (
    SIMULATED,
    Cell,
    Measured,
    best_that_arrives,
    change,
    comparisons,
    interval,
    measure,
    table_rows,
)
from gradsieve_hvd.experiments.simulate.modes.run import Cluster, Run, Setting
from gradsieve_hvd.experiments.simulate.modes.server import Compressors, Weights
from gradsieve_hvd.experiments.simulate.modes.stragglers import SCENARIOS, Delays, as_measured
from gradsieve_hvd.experiments.simulate.modes.tasks import digits
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.modes import MODES

SETTING = Setting(learning_rate=0.5, momentum=0.5)


@pytest.fixture(scope="module")
def task():
    return digits()


def played(task, mode, scenario="even", *, chosen=(SETTING,), horizon=20.0, density=1.0, seed=0):
    cluster = Cluster(SCENARIOS[scenario], 4, density, horizon)
    return Run(task, MODES[mode], cluster, chosen, seed, patience=10.0).play()


def test_gradients_are_those_of_autograd():
    random = np.random.default_rng(0)
    model = Perceptron(5, 4, 3)
    weights = np.stack([model.initial(seed) for seed in (0, 1)])
    inputs = random.standard_normal((7, 5)).astype(np.float32)
    labels = random.integers(3, size=7)
    for row, found in zip(weights, model.gradient_sum(weights, inputs, labels), strict=True):
        flat = torch.tensor(row, requires_grad=True)
        first, bias, second, second_bias = flat.split([20, 4, 12, 3])
        hidden = torch.tanh(torch.tensor(inputs) @ first.view(5, 4) + bias)
        logits = hidden @ second.view(4, 3) + second_bias
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
        (expected,) = torch.autograd.grad(7 * loss, flat)
        # fp32 sums in another order
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)
        assert model.loss(row[None], inputs, labels)[0] == pytest.approx(loss.item(), rel=1e-5)


def test_releases_step_as_sgd_with_momentum_does():
    random = np.random.default_rng(0)
    initial = random.standard_normal(6).astype(np.float32)
    weights = Weights(initial, [0.3], [0.9], workers=2)
    parameter = torch.nn.Parameter(torch.tensor(initial))
    optimizer = torch.optim.SGD([parameter], lr=0.3, momentum=0.9)
    for _ in range(4):
        pushed = random.standard_normal((2, 1, 6)).astype(np.float32)
        weights.release([Contribution(0), Contribution(1)], dict(enumerate(pushed)))
        parameter.grad = torch.tensor(pushed.mean(axis=0)[0])
        optimizer.step()
    np.testing.assert_allclose(weights.values_SN[0], parameter.detach().numpy(), rtol=1e-5)


@given(
    st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.lists(st.integers(-3, 3), min_size=4, max_size=4)
)
def test_what_is_late_loses_only_the_entries_that_oppose_the_fresh_sum(fresh, late):
    weights = Weights(np.zeros(4, dtype=np.float32), [1.0], [0.0], workers=1)
    gradients = {number: np.array([each], dtype=np.float32) for number, each in enumerate((fresh, late))}
    weights.release([Contribution(1, weight=0.5, gated=True), Contribution(0)], gradients)
    expected = [-(new + (0 if new * old < 0 else 0.5 * old)) for new, old in zip(fresh, late, strict=True)]
    assert weights.values_SN[0].tolist() == expected
    assert gradients == {}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(-50, 50), min_size=20, max_size=20), min_size=1, max_size=6))
def test_what_sparse_pushes_do_not_carry_comes_later(steps):
    compressors = Compressors(1, 20, density=0.1)
    given_, sent = np.zeros(20), np.zeros(20)
    for step in steps:
        gradient = np.array([step], dtype=np.float32)
        carried = compressors.sent(gradient)[0]
        assert np.count_nonzero(carried) <= 2
        given_, sent = given_ + step, sent + carried
    rest = [compressors.sent(np.zeros((1, 20), dtype=np.float32))[0] for _ in range(10)]
    assert (sent + np.sum(rest, axis=0)).tolist() == given_.tolist()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_delays_are_the_same_for_every_mode_of_a_seed(scenario):
    one, other = (Delays(SCENARIOS[scenario], 4, seed=3, density=1.0) for _ in range(2))
    # The order in which ranks ask differs between modes.
    first = {(rank, turn): one.computing(rank, 2.0 * turn, 1.0) for turn in range(5) for rank in range(4)}
    second = {(rank, turn): other.computing(rank, 2.0 * turn, 1.0) for rank in range(4) for turn in range(5)}
    assert first == second


def test_a_servers_link_carries_one_message_after_the_other():
    delays = Delays(SCENARIOS["server"], 4, seed=0, density=1.0)
    assert [delays.push_arrival(rank, 1.0) for rank in range(3)] == pytest.approx([1.15, 1.30, 1.45])
    assert delays.reply_arrival(0, 1.0) == pytest.approx(1.15)
    assert delays.push_arrival(3, 9.0) == pytest.approx(9.15)


def test_sparse_pushes_are_short_and_replies_are_not():
    delays = Delays(SCENARIOS["link"], 4, seed=0, density=0.01)
    assert delays.push_arrival(3, 1.0) == pytest.approx(1.015)
    assert delays.reply_arrival(3, 1.0) == pytest.approx(2.0)
    assert delays.push_arrival(0, 1.0) == 1.0


def test_an_answer_takes_its_time_half_of_it_each_way():
    delays = Delays(dataclasses.replace(SCENARIOS["link"], answer=lambda _: 0.2), 4, seed=0, density=1.0)
    assert delays.push_arrival(0, 1.0) == pytest.approx(1.1)
    assert delays.reply_arrival(3, 1.0) == pytest.approx(2.1)
    assert delays.answer_arrival(0, 1.0) == pytest.approx(1.1)


def test_workers_that_were_measured_have_answers_of_their_own():
    delays = Delays(
        as_measured([1.0, 4.0], [0.2, 0.8], [[1.0], [1.0]], together=False), 2, seed=0, density=1.0
    )
    assert [delays.push_arrival(rank, 1.0) for rank in (0, 1)] == pytest.approx([1.1, 1.4])
    assert [delays.reply_arrival(rank, 1.0) for rank in (0, 1)] == pytest.approx([1.1, 1.4])
    assert [delays.answer_arrival(rank, 1.0) for rank in (0, 1)] == pytest.approx([1.1, 1.4])
    assert [delays.computing(rank, 1.0, 0.5) for rank in (0, 1)] == [0.5, 2.0]


def test_batches_of_workers_that_were_measured_take_what_one_of_those_did():
    ratios = [[0.9, 1.1], [0.5, 1.0, 1.5]]
    delays = Delays(as_measured([1.0, 4.0], [0.0, 0.0], ratios, together=False), 2, seed=0, density=1.0)
    for rank, slowness in enumerate((1.0, 4.0)):
        drawn = Counter(delays.computing(rank, 1.0, 1.0) / slowness for _ in range(300))
        assert sorted(drawn) == ratios[rank]
        assert min(drawn.values()) > 300 / len(ratios[rank]) / 2


@pytest.mark.parametrize("together", [True, False])
def test_batches_that_were_measured_in_one_step_are_drawn_together(together):
    """Whoever is late with one of them is in all draws of that step, in whatever order ranks come."""
    ratios = [[0.9, 1.0, 1.1, 1.2], [1.9, 2.0, 2.1, 2.2]]
    delays = Delays(as_measured([1.0, 1.0], [0.0, 0.0], ratios, together=together), 2, seed=3, density=1.0)
    first = [delays.computing(0, 1.0, 1.0) for _ in range(50)]
    second = [delays.computing(1, 1.0, 1.0) for _ in range(50)]
    assert len(set(first)) == 4
    assert all(b - a == pytest.approx(1.0) for a, b in zip(first, second, strict=True)) == together


def test_who_waits_for_answers_alone_waits_for_as_long_as_they_take():
    cell = Cell("digits", 4, "even", "asp", 1.0, 1, 1, 30.0, answer=0.25, setting=SETTING)
    assert measure(cell).waiting_share == pytest.approx(0.25 / 1.25, abs=0.03)


def test_collectives_wait_for_no_answer():
    cell = Cell("digits", 4, "even", "synchronous", 1.0, 1, 1, 30.0, setting=SETTING)
    beside = measure(dataclasses.replace(cell, answer=0.25))
    assert dataclasses.replace(beside, cell=cell) == measure(cell)


def test_settings_that_are_trained_side_by_side_come_to_what_each_comes_to_alone(task):
    chosen = [Setting(1.0, 0.5), Setting(1.0, 0.0)]
    together = played(task, "dasp", "transient", chosen=chosen, horizon=500.0).seconds
    alone = [played(task, "dasp", "transient", chosen=[each], horizon=500.0).seconds[0] for each in chosen]
    assert together == pytest.approx(alone, rel=1e-3)
    assert max(together) < math.inf


def test_bsp_waits_for_a_slow_worker_and_asp_never_does(task):
    bsp, asp = played(task, "synchronous", "slow4"), played(task, "asp", "slow4")
    assert bsp.waiting_share == pytest.approx(1 - (3 + 4) / 16, abs=0.05)
    assert bsp.staleness_mean == 0
    # Batches that are not finished at the end count for as long as they have taken.
    assert asp.waiting_share == pytest.approx(0, abs=1e-6)
    assert asp.staleness_mean == pytest.approx(3, abs=0.5)


def test_waiting_counts_up_to_the_horizon_though_nothing_happens_there(task):
    """The fast workers have waited for three of four batches by then, and the slow one has not pushed yet."""
    bsp = played(task, "synchronous", "slow4", horizon=3.5)
    assert bsp.waiting_share == pytest.approx(1 - (3 + 3.5) / (4 * 3.5), abs=0.05)


def test_what_does_not_reach_the_target_takes_forever(task):
    assert played(task, "synchronous", chosen=[Setting(1e-6, 0.0)]).seconds == [math.inf]
    assert played(task, "synchronous", chosen=[Setting(1e9, 0.9)]).seconds == [math.inf]


def measured(mode, seconds, batches=80.0):
    cell = Cell("digits", 8, "slow4", mode, 1.0, len(seconds), 1, 100.0)
    return Measured(cell, SETTING, 0, seconds, batches, 0.0, 0.0)


def test_a_batchs_worth_is_compared_with_that_of_synchronous_training():
    reached = [10.0, 12.0]
    rows = [measured("asp", reached, 160.0), measured("synchronous", reached), measured("ssp", [math.inf])]
    assert [row["efficiency"] for row in table_rows(rows)] == [0.5, 1.0, None]
    assert table_rows(rows[:1])[0]["efficiency"] is None


def test_batches_are_those_of_all_workers_until_the_target(task):
    run = played(task, "synchronous", chosen=[Setting(1.0, 0.5)], horizon=500.0)
    # A step of four batches takes as long as the slowest of four that scatter by 5 %.
    assert run.batches == pytest.approx(4 * run.seconds[0] / 1.05, rel=0.05)


def test_a_timeline_shows_who_waits_and_when_weights_are_made():
    bsp = timeline.played(MODES["synchronous"], SCENARIOS["slow4"], 4, 16.0, seed=0)
    assert bsp.computing_share == pytest.approx((3 + 4) / 16, abs=0.05)
    assert len([time for time in bsp.made if time <= 16.0]) == pytest.approx(4, abs=1)
    assert {span.missed for span in bsp.spans if span.ended < 12} == {0}
    asp = timeline.played(MODES["asp"], SCENARIOS["slow4"], 4, 16.0, seed=0)
    assert asp.computing_share == pytest.approx(1, abs=0.01)
    assert max(span.missed or 0 for span in asp.spans) > 8
    local = timeline.local_rounds(SCENARIOS["slow4"], 4, 16.0, seed=0)
    assert [
        sum(span.rank == rank and span.ended <= local.made[0] for span in local.spans) for rank in (0, 3)
    ] == [
        4,
        4,
    ]


@pytest.mark.parametrize("mode", [*SIMULATED, "local"])
def test_timelines_of_all_modes_are_drawn(mode, tmp_path):
    file = tmp_path / "timeline.png"
    result = CliRunner().invoke(main, ["simulate", "timeline", "--mode", mode, "--plot", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_setting_that_fails_now_and_then_gives_way_to_the_next_best(task):
    def play(setting):
        return [played(task, "synchronous", chosen=[setting], horizon=200.0, seed=s) for s in range(2)]

    diverges, arrives, too_slow = Setting(1e9, 0.9), Setting(0.5, 0.8), Setting(1e-6, 0.0)
    chosen, results = best_that_arrives([diverges, arrives, too_slow], play)
    assert chosen == 1
    assert all(each.seconds[0] < math.inf for each in results)
    chosen, results = best_that_arrives([diverges, too_slow], play)
    assert chosen == 0
    assert [each.seconds for each in results] == [[math.inf], [math.inf]]


def test_intervals_hold_the_mean_and_pairs_are_compared_as_pairs():
    seconds = [10.0, 20.0, 30.0, 40.0]
    low, high = interval(seconds)
    assert low < 25 < high
    assert change([0.5 * each for each in seconds], seconds) == pytest.approx((-0.5, -0.5, -0.5))


def test_dasp_is_compared_with_the_best_baseline_that_always_reached_the_target():
    rows = [
        measured("synchronous", [10.0, 12.0]),
        measured("asp", [2.0, math.inf]),
        measured("ssp", [8.0, 8.0]),
        measured("balanced", [1.0, 1.0]),
        measured("dasp", [4.0, 4.0]),
    ]
    (found,) = comparisons(rows)
    assert (found["mode"], found["against"], found["change"]) == ("dasp", "ssp", -0.5)
    assert rows[1].row()["seconds"] is None


def test_the_command_tunes_measures_and_compares(tmp_path):
    file = tmp_path / "modes.json"
    call = "simulate modes --workers 4 --scenario even --mode synchronous,dasp --seeds 2 --tuning-seeds 1"
    options = ["--horizon", "200", "--density", "1", "--processes", "1", "--json", str(file)]
    result = CliRunner().invoke(main, [*call.split(), *options, "--plot", str(tmp_path / "modes.png")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "modes.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads(file.read_text())
    assert [row["mode"] for row in content["rows"]] == ["synchronous", "dasp"]
    fields = {"task", "workers", "scenario", "mode", "density", "seconds", "low", "high", "learning_rate"}
    others = {"momentum", "seeds", "waiting_share", "staleness_mean", "passed_over", "batches", "efficiency"}
    assert set(content["rows"][0]) == fields | others | {"answer"}
    assert [each["against"] for each in content["comparisons"]] == ["synchronous"]
    assert "against synchronous" in result.output


def test_unknown_scenarios_are_named():
    result = CliRunner().invoke(main, ["simulate", "modes", "--scenario", "even,odd"])
    assert result.exit_code == 2
    assert "'odd'" in result.output

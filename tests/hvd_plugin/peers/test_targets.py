"""Trainings are compared by what another reaches in so many steps, and on links too slow to train on."""

import pytest
from matplotlib.image import imread
from printed_tables import printed

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.experiments.peers.on_links import add_links, links_known
from gradsieve_hvd.experiments.peers.options import names_of
from gradsieve_hvd.experiments.peers.plots import lines_of, plot_training
from gradsieve_hvd.experiments.peers.reaching import Target, first_at
from gradsieve_hvd.experiments.peers.tables import measured_alike, on_links_table

CURVE = [(5, 1.0, 3.0), (10, 2.0, 2.5), (15, 3.0, 2.6), (20, 4.0, 2.4)]


def trained(contender, steps, seed=0, **others):
    return {
        "link": "unshaped", "ranks": 4, "task": "charlm", "optimizer": "adamw", "contender": contender,
        "seed": seed, "learning_rate": 0.001, "steps": steps, "until": 2.5, "steps_to_target": steps,
    } | others  # fmt: skip


def timed(contender, step_seconds, **others):
    return {
        "link": "10mbit", "ranks": 4, "task": "charlm", "optimizer": "adamw", "contender": contender,
        "step_seconds": step_seconds, "wire_bytes": 4000.0,
    } | others  # fmt: skip


def test_a_target_is_a_number_or_what_another_reaches():
    assert Target.parse("2.6") == Target(2.6)
    assert Target.parse("dense@2000") == Target(None, "dense", 2000)
    for text in ("dense", "dense@many", "@"):
        with pytest.raises(ConfigurationError, match="dense@2000"):
            Target.parse(text)


def test_every_seed_has_a_target_of_its_own():
    target = Target.parse("dense@20")
    rows = [trained("dense", 20, seed, until=2.5 + seed) for seed in (0, 1)]
    assert [target.of(seed, rows) for seed in (0, 1)] == [2.5, 3.5]


def test_a_target_found_after_other_steps_is_refused():
    with pytest.raises(ConfigurationError, match="dense after 20 steps, not 30"):
        Target.parse("dense@30").of(0, [trained("dense", 20)])


@pytest.mark.parametrize(
    ("target", "rising", "place"),
    [(2.55, False, 1), (2.4, False, 3), (2.3, False, None), (2.9, True, 0), (3.1, True, None)],
)
def test_a_target_is_reached_at_the_first_evaluation_that_is_there(target, rising, place):
    assert first_at(CURVE, target, rising=rising) == place


def test_seconds_on_a_link_are_steps_times_what_one_takes_there():
    rows = [trained("dense", 2000), trained("local-15", 5000), trained("ring", 9000, steps_to_target=None)]
    add_links(rows, [timed("dense", 40.0), timed("local-15", 0.4), timed("ring", 1.0)], batch=4)
    on_links = {row["contender"]: row["on_links"]["10mbit"] for row in rows}
    assert on_links["dense"] == {
        "step_seconds": 40.0, "seconds_to_target": 80_000.0, "bytes_per_sample": 1000.0
    }  # fmt: skip
    assert on_links["local-15"]["seconds_to_target"] == 2000.0
    assert on_links["ring"]["seconds_to_target"] is None


def test_a_picture_has_the_trainings_over_the_seconds_of_each_link(tmp_path):
    curve = [(0, 0.0, 3.5), (10, 2.0, 2.5), (20, 4.0, 2.2)]
    rows = [trained(name, 20, curve=curve, metric="loss") for name in ("dense", "ring")]
    add_links(rows, [timed("dense", 40.0), timed("ring", 1.0), timed("ring", 0.5, link="100mbit")], batch=4)
    assert [line.seconds for line in lines_of(rows)] == [(0.0, 2.0, 4.0)] * 2
    assert [(line.name, line.seconds) for line in lines_of(rows, "10mbit")] == [
        ("dense", (0.0, 400.0, 800.0)),
        ("ring", (0.0, 10.0, 20.0)),
    ]
    assert [(line.name, line.seconds) for line in lines_of(rows, "100mbit")] == [("ring", (0.0, 5.0, 10.0))]
    plot_training(rows, "on a fast link", tmp_path / "plot.png")
    height, width, _ = imread(tmp_path / "plot.png").shape
    assert width == pytest.approx(3 * 8.5 / 5 * height, abs=3)  # a part for each


def test_a_link_is_shown_if_steps_of_any_training_are_known_there():
    rows = [trained("dense", 2000), trained("ring", 2000)]
    add_links(rows, [timed("dense", 3.0, link="100mbit"), timed("ring", 1.0)], batch=4)
    assert links_known([*rows, trained("dgc", 5)]) == ["100mbit", "10mbit"]


def test_a_second_of_a_kind_has_steps_of_its_own_or_the_firsts():
    rows = [trained("dense#2", 2000), trained("ring#2", 2000)]
    add_links(rows, [timed("dense", 40.0), timed("ring", 1.0), timed("ring#2", 2.0)], batch=4)
    assert [row["on_links"]["10mbit"]["step_seconds"] for row in rows] == [40.0, 2.0]


@pytest.mark.parametrize("other", [{"ranks": 8}, {"task": "digits"}, {"optimizer": "task"}])
def test_steps_of_another_training_do_not_count(other):
    rows = [trained("dense", 2000)]
    add_links(rows, [timed("dense", 40.0, **other)], batch=4)
    assert rows[0]["on_links"] == {}


def test_a_table_of_a_slow_link_shows_what_was_not_reached_as_a_bound():
    rows = [trained("dense", 2000), trained("ring", 9000, steps_to_target=None), trained("dgc", 5)]
    add_links(rows, [timed("dense", 40.0), timed("ring", 1.0)], batch=4)
    shown = printed(on_links_table(rows, "10mbit"))
    assert "charlm with adamw, 4 ranks, link 10mbit" in shown
    assert "80,000" in shown
    assert "> 9,000" in shown
    assert "dgc" not in shown


def test_rows_of_another_optimizer_stand_in_another_table():
    rows = [trained("dense", 20), trained("dense", 20, optimizer="task")]
    before = trained("dense", 20)
    del before["optimizer"]  # as rows were before there was a choice
    assert [len(group) for group in measured_alike([*rows, before]).values()] == [1, 2]


def test_who_applies_momentum_cannot_be_trained_with_adamw():
    assert "dgc" in names_of(None, "task")
    assert "dgc" not in names_of(None, "adamw")
    assert {"local-15", "ddp", "powersgd-4"} < {*names_of(None, "adamw")}
    with pytest.raises(
        ConfigurationError, match="dgc#2 cannot be trained with --optimizer adamw: it applies"
    ):
        names_of("ddp,dgc#2", "adamw")

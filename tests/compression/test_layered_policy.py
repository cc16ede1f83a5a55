"""Densities that follow the kept energy (method A, step 4), within the bounds of layer and model."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve import ConfigurationError, LayeredPolicy, Outcome
from gradsieve.policies.layered import adapted_density, bounded_densities

BOUNDS = (0.001, 0.1)


def policy(density: float = 0.01, **settings: object) -> LayeredPolicy:
    defaults = {"bounds": BOUNDS, "dead_band": 0.1, "adapt_steps": 10, "reanchor_steps": 5}
    return LayeredPolicy(density, **(defaults | settings))


def run(made, parts, gains, steps):
    """Let each layer report its gain whenever it is asked for it."""
    for step in steps:
        for part, gain in zip(parts, gains, strict=True):
            wants = part.decide(step).measure
            part.observe(Outcome(1000, 10, 1.0, gain if wants else None))
            part.commit()
        made.commit()


def densities(parts, step=1):
    return [part.decide(step).density for part in parts]


def test_every_layer_starts_at_the_configured_density():
    made = policy(0.02)
    assert densities([made.layer("a", 10), made.layer("b", 10**9)]) == [0.02, 0.02]


def test_a_layer_that_keeps_less_than_usual_gets_more_and_pays_with_the_others():
    made = policy()
    parts = [made.layer("a", 1000), made.layer("b", 1000)]
    run(made, parts, [0.5, 0.5], range(10))
    run(made, parts, [0.3, 0.5], range(10, 20))
    low, usual = densities(parts)
    assert low == pytest.approx(0.01 * 1.25 / 1.125)
    assert usual == pytest.approx(0.01 / 1.125)


def test_a_layer_that_keeps_more_than_usual_gets_less():
    made = policy()
    part = made.layer("a", 1000)
    run(made, [part], [0.5], range(10))
    run(made, [part], [0.6], range(10, 20))
    assert densities([part]) == [pytest.approx(0.008)]


def test_within_the_dead_band_and_before_there_is_a_usual_level_densities_hold():
    made = policy()
    part = made.layer("a", 1000)
    for window, gain in enumerate([0.5, 0.54, 0.48, 0.5]):
        run(made, [part], [gain], range(10 * window, 10 * window + 10))
        assert densities([part]) == [0.01]


def test_a_new_level_becomes_usual_instead_of_running_away():
    made = policy()
    part = made.layer("a", 1000)
    run(made, [part], [0.5], range(20))
    run(made, [part], [0.7], range(20, 300))
    settled = densities([part])
    run(made, [part], [0.7], range(300, 600))
    assert densities([part]) == settled
    assert settled[0] > BOUNDS[0]


def test_only_the_layers_that_had_gradients_are_judged():
    made = policy()
    idle, busy = made.layer("idle", 1000), made.layer("busy", 1000)
    for step in range(20):
        busy.decide(step)
        busy.observe(Outcome(1000, 10, 1.0, 0.5 if step < 10 else 0.9))
        busy.commit()
        made.commit()
    assert densities([idle, busy]) == [0.01, pytest.approx(0.008)]


def test_thresholds_are_anchored_anew_and_gains_measured_only_now_and_then():
    part = policy(adapt_steps=100, reanchor_steps=50).layer("a", 1000)
    decisions = [part.decide(step) for step in range(100)]
    assert [step for step, decision in enumerate(decisions) if decision.refresh_threshold] == [0, 50]
    assert [step for step, decision in enumerate(decisions) if decision.measure] == list(range(0, 100, 10))


@given(layers=st.integers(1, 120), reanchor_steps=st.integers(1, 60))
def test_layers_are_anchored_together_once_and_then_by_turns(layers, reanchor_steps):
    made = policy(reanchor_steps=reanchor_steps)
    parts = [made.layer(f"layer.{number}", 1000) for number in range(layers)]
    anchored = [
        [number for number, part in enumerate(parts) if part.decide(step).refresh_threshold]
        for step in range(3 * reanchor_steps)
    ]
    assert anchored[0] == list(range(layers))
    fair = layers / reanchor_steps
    assert all(len(step) <= 2 * math.ceil(fair) for step in anchored[1:])
    for number in range(layers):
        own = [step for step, anchors in enumerate(anchored) if number in anchors]
        gaps = [after - before for before, after in itertools.pairwise(own)]
        assert all(gap <= reanchor_steps for gap in gaps)
        assert all(gap == reanchor_steps for gap in gaps[1:])


def test_gains_are_measured_by_turns_ten_times_in_a_window_by_every_layer():
    made = policy(adapt_steps=100, reanchor_steps=50)
    parts = [made.layer(f"layer.{number}", 1000) for number in range(30)]
    measuring = [[part.decide(step).measure for part in parts] for step in range(100)]
    assert {sum(layer) for layer in zip(*measuring, strict=True)} == {10}
    assert max(map(sum, measuring)) <= 2 * 30 / 10


def test_a_layers_turn_is_saved_and_does_not_depend_on_the_order_of_layers():
    names = ["a", "b", "c", "d"]
    saved, resumed = policy(reanchor_steps=50), policy(reanchor_steps=50)
    before = {name: saved.layer(name, 1000) for name in names}
    after = {name: resumed.layer(name, 1000) for name in reversed(names)}
    for name in names:
        after[name].load_state_dict(before[name].state_dict())
        turns = [
            [part.decide(step).refresh_threshold for step in range(200)]
            for part in (before[name], after[name])
        ]
        assert turns[0] == turns[1]


def test_a_state_from_before_layers_took_turns_is_loaded():
    made = policy(reanchor_steps=50)
    made.layer("a", 1000)
    part = made.layer("b", 1000)
    turns = [part.decide(step).refresh_threshold for step in range(100)]
    part.load_state_dict({"density": 0.02, "gains": [0.5], "history": [0.4]})
    assert [part.decide(step).refresh_threshold for step in range(100)] == turns
    assert densities([part]) == [0.02]


LAYERS = st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 10**9)), min_size=1, max_size=30)


@given(layers=LAYERS, mean=st.floats(BOUNDS[0], BOUNDS[1]))
def test_every_layer_and_the_models_mean_are_within_their_bounds(layers, mean):
    wanted, elements = zip(*layers, strict=True)
    bounded = bounded_densities(wanted, elements, mean, BOUNDS)
    assert all(BOUNDS[0] <= density <= BOUNDS[1] for density in bounded)
    spent = sum(density * n for density, n in zip(bounded, elements, strict=True))
    assert spent <= mean * sum(elements) * (1 + 1e-12)


@given(layers=LAYERS, mean=st.floats(BOUNDS[0], BOUNDS[1]))
def test_the_bounds_take_no_more_than_they_must_and_keep_the_order(layers, mean):
    wanted, elements = zip(*layers, strict=True)
    clipped = [min(max(density, BOUNDS[0]), BOUNDS[1]) for density in wanted]
    bounded = bounded_densities(wanted, elements, mean, BOUNDS)
    budget = mean * sum(elements)
    if sum(density * n for density, n in zip(clipped, elements, strict=True)) <= budget:
        assert bounded == clipped
    else:
        spent = sum(density * n for density, n in zip(bounded, elements, strict=True))
        assert spent == pytest.approx(budget, rel=1e-9)
    by_wish = [density for _, density in sorted(zip(clipped, bounded, strict=True))]
    assert by_wish == sorted(by_wish)


@given(
    gains=st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), max_size=40),
    elements=st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
    density=st.floats(0.001, 0.1),
)
def test_no_sequence_of_gains_leads_out_of_the_bounds(gains, elements, density):
    made = policy(density, adapt_steps=2)
    parts = [made.layer(str(number), n) for number, n in enumerate(elements)]
    for step, values in enumerate(gains):
        run(made, parts, values, range(step, step + 1))
        now = densities(parts)
        assert all(BOUNDS[0] <= value <= BOUNDS[1] for value in now)
        spent = math.fsum(value * n for value, n in zip(now, elements, strict=True))
        assert spent <= density * sum(elements) * (1 + 1e-12)


@given(density=st.floats(0.001, 0.1), gain=st.floats(0, 1), usual=st.floats(0.01, 1))
def test_less_energy_never_means_a_lower_density(density, gain, usual):
    now = adapted_density(density, gain, usual, 0.1)
    assert adapted_density(density, gain / 2, usual, 0.1) >= now
    assert now in (density, density * 1.25, density / 1.25)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param({}, "'density': missing", id="of a fixed policy"),
        pytest.param(
            {"density": 2, "gains": [], "history": []}, "'density': 2, expected a number", id="range"
        ),
        pytest.param({"density": 0.1, "gains": [math.nan], "history": []}, "'gains': list", id="not finite"),
        pytest.param({"density": 0.1, "gains": [], "history": [], "x": 1}, "'x': found", id="unknown field"),
        pytest.param(
            {"density": 0.1, "gains": [], "history": [], "anchor_turn": -1}, "'anchor_turn': -1", id="turn"
        ),
    ],
)
def test_a_layers_state_that_does_not_fit_is_refused_and_changes_nothing(state, message):
    made = policy()
    part = made.layer("a", 1000)
    run(made, [part], [0.5], range(10))
    before = part.state_dict()
    with pytest.raises(ConfigurationError, match=message):
        part.load_state_dict(state)
    assert part.state_dict() == before

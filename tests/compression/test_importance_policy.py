"""A density that follows the batches' losses and the network's delay (method B)."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsieve import ConfigurationError, ImportancePolicy, LossRecorder
from gradsieve.policies.importance import batch_importance
from gradsieve.policies.network import Network

BOUNDS = (0.001, 0.25)


def policy(recorder: LossRecorder | None = None, **settings: object) -> ImportancePolicy:
    defaults = {"bounds": BOUNDS, "loss_power": 1.0, "network_power": 1.0, "period": 10}
    return ImportancePolicy(0.01, recorder=recorder or LossRecorder(), **(defaults | settings))


def run(made, recorder, losses, steps=10, seconds=None, size=1000):
    part = made.layer("a", 1000)
    for _ in range(steps):
        if losses is not None:
            recorder.record(losses)
        part.decide(0)
        if seconds is not None:
            made.observe_exchange(seconds, size)
        made.commit()
    return made.density


def spread(mean: float, samples: int = 64) -> torch.Tensor:
    """Losses around a mean, none equal."""
    return torch.linspace(0.5 * mean, 1.5 * mean, samples, dtype=torch.float64)


def test_usual_batches_on_an_unchanged_network_send_the_configured_density():
    recorder = LossRecorder()
    assert run(policy(recorder), recorder, spread(2.0), 50, seconds=0.1) == 0.01


def test_batches_that_are_harder_than_usual_send_more_and_easier_ones_less():
    recorder = LossRecorder()
    made = policy(recorder)
    run(made, recorder, spread(1.0))
    assert run(made, recorder, spread(4.0)) == pytest.approx(0.02)  # importance at its upper clip, 2
    recorder = LossRecorder()
    made = policy(recorder)
    run(made, recorder, spread(1.0))
    assert run(made, recorder, spread(0.1)) == pytest.approx(0.005)  # at its lower clip, 1/2


def test_a_network_that_takes_twice_as_long_per_byte_halves_the_density():
    recorder = LossRecorder()
    made = policy(recorder, loss_power=0.0)
    assert run(made, recorder, None, 10, seconds=0.1) == 0.01
    # the last change is made when what is wanted is more than 20 % away
    assert 0.005 / 1.2 <= run(made, recorder, None, 100, seconds=0.2) <= 0.005 / 0.8
    assert 0.01 / 1.2 <= run(made, recorder, None, 100, seconds=0.1) <= 0.01 / 0.8


def test_more_bytes_in_as_much_more_time_are_no_slower_network():
    recorder = LossRecorder()
    made = policy(recorder, loss_power=0.0)
    run(made, recorder, None, 10, seconds=0.1, size=1000)
    assert run(made, recorder, None, 50, seconds=0.3, size=3000) == 0.01


def test_the_delay_of_an_empty_exchange_is_taken_off():
    network = Network(window=2)
    for seconds in (0.9, 0.5, 0.7):
        network.observe(seconds, 0)
    for seconds, size in ((1.5, 1000), (2.5, 2000)):
        network.observe(seconds, size)
    assert network.reference == pytest.approx(1e-3)
    assert network.speed() == 1.0


def test_the_delay_is_smoothed_by_seven_eighths():
    network = Network(window=1)
    network.observe(1.0, 1)
    network.observe(9.0, 1)
    assert network.smoothed == 2.0
    assert network.speed() == 0.5


def test_the_first_windows_median_ignores_one_slow_exchange():
    network = Network(window=3)
    for seconds in (1.0, 60.0, 1.1):
        network.observe(seconds, 1)
    assert network.reference == 1.1


def test_an_exchange_as_fast_as_an_empty_one_says_nothing():
    network = Network(window=1)
    network.observe(1.0, 0)
    network.observe(0.5, 10)
    assert network.speed() == 1.0


def test_small_changes_are_not_made():
    recorder = LossRecorder()
    made = policy(recorder)
    run(made, recorder, spread(1.0))
    assert run(made, recorder, spread(1.05)) == 0.01


@given(
    losses=st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    usual=st.floats(0, 1e6),
    recent=st.lists(st.floats(0, 1e6), max_size=50),
)
def test_importance_is_between_a_half_and_two(losses, usual, recent):
    samples = torch.tensor(losses, dtype=torch.float64)
    value = batch_importance(samples, usual, torch.tensor(recent, dtype=torch.float64))
    assert 0.5 <= value <= 2.0
    harder = batch_importance(samples + 1.0, usual, torch.tensor(recent, dtype=torch.float64))
    assert harder >= value


@given(
    st.lists(
        st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.integers(0, 10**9), st.booleans()), max_size=40
    )
)
def test_the_density_never_leaves_its_bounds_and_a_rollback_never_moves_it(steps):
    recorder = LossRecorder()
    made = policy(recorder, period=3)
    part = made.layer("a", 10)
    for loss, seconds, size, taken in steps:
        recorder.record(torch.tensor([loss, loss / 2], dtype=torch.float64))
        before = made.state_dict()
        density = part.decide(0).density
        assert BOUNDS[0] <= density <= BOUNDS[1]
        made.observe_exchange(seconds, size)
        assert made.state_dict() == before
        if taken:
            made.commit()
        else:
            made.rollback()
            assert made.state_dict() == before


def test_the_losses_of_a_step_that_was_rolled_back_are_dropped_and_the_next_ones_kept():
    recorder = LossRecorder()
    made = policy(recorder)
    part = made.layer("a", 10)
    recorder.record(torch.tensor([7.0]))
    part.decide(0)
    recorder.record(torch.tensor([1.0]))  # the next forward pass comes before anybody knows of the rollback
    made.rollback()
    part.decide(0)
    made.commit()
    assert made.state_dict()["unread_losses"] == [[1.0]]


def test_losses_recorded_before_the_policy_was_made_are_another_trainings():
    recorder = LossRecorder()
    recorder.record(torch.tensor([9.0]))
    made = policy(recorder)
    made.layer("a", 10).decide(0)
    made.commit()
    assert made.state_dict()["unread_losses"] == [[]]


def test_samples_without_a_loss_do_not_count():
    recorder = LossRecorder()
    made = policy(recorder, period=1, network_power=0)
    run(made, recorder, torch.tensor([[1.0, float("nan")], [3.0, float("inf")]]), 1)
    assert made.state_dict()["recent_losses"] == [1.0, 3.0]
    assert made.state_dict()["usual_loss"] == 2.0


def test_only_the_last_1024_losses_are_remembered():
    recorder = LossRecorder()
    made = policy(recorder, period=1)
    run(made, recorder, torch.arange(1500.0), 1)
    assert made.state_dict()["recent_losses"] == list(range(476, 1500))


def test_no_losses_at_all_are_reported_once():
    made = policy()
    with pytest.warns(UserWarning, match=r"no sample losses.*gradsieve\.cross_entropy"):
        assert run(made, LossRecorder(), None) == 0.01


def test_only_a_policy_that_looks_at_the_network_asks_for_delays():
    assert policy().times_exchanges
    assert not policy(network_power=0).times_exchanges


def test_a_restored_policy_goes_on_with_the_same_densities():
    recorder, other = LossRecorder(), LossRecorder()
    made, restored = policy(recorder), policy(other)
    run(made, recorder, spread(1.0), 25, seconds=0.1)
    restored.load_state_dict(copy.deepcopy(made.state_dict()))
    assert restored.state_dict() == made.state_dict()
    for mean, seconds in ((4.0, 0.1), (0.2, 0.4), (0.2, 0.1)):
        first = run(made, recorder, spread(mean), 13, seconds)
        assert run(restored, other, spread(mean), 13, seconds) == first
        assert restored.state_dict() == made.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"density": 0}, "'density': 0", id="density"),
        pytest.param({"steps": -1}, "'steps': -1", id="steps"),
        pytest.param({"usual_loss": -2.0}, r"'usual_loss': -2\.0", id="loss"),
        pytest.param(
            {"unread_losses": [1.0]}, "'unread_losses': list, expected a list of lists", id="nesting"
        ),
        pytest.param({"recent_losses": "x"}, "'recent_losses': str", id="type"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    recorder = LossRecorder()
    made = policy(recorder)
    run(made, recorder, spread(1.0), 15, seconds=0.1)
    before = made.state_dict()
    with pytest.raises(ConfigurationError, match=message):
        made.load_state_dict(before | change)
    assert made.state_dict() == before

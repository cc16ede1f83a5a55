"""Linear scaling: from one rank's learning rate to N times it."""

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR

from gradsieve import ConfigurationError, LinearScalingLR


def optimizer(*rates: float) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def run(made: torch.optim.SGD, scheduler: object, steps: int) -> list[list[float]]:
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in made.param_groups])
        made.step()
        scheduler.step()
    return rates


def test_the_rate_rises_in_equal_steps_to_n_times_its_start_and_stays():
    made = optimizer(0.1, 0.02)
    rates = run(made, LinearScalingLR(made, ranks=4, warmup_steps=6), 9)
    assert [first for first, _ in rates] == pytest.approx(
        [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4, 0.4], rel=1e-12
    )
    assert [second / first for first, second in rates] == pytest.approx([0.2] * 9)


def test_without_a_warm_up_it_starts_at_n_times_the_rate():
    made = optimizer(0.1)
    assert run(made, LinearScalingLR(made, ranks=8, warmup_steps=0), 2) == [[0.8], [0.8]]


def test_one_rank_changes_nothing():
    made = optimizer(0.1)
    assert run(made, LinearScalingLR(made, ranks=1, warmup_steps=3), 5) == [[0.1]] * 5


def test_it_multiplies_with_other_schedulers():
    made = optimizer(1.0)
    both = ChainedScheduler([LinearScalingLR(made, ranks=3, warmup_steps=2), ExponentialLR(made, 0.5)])
    rates = [rate for (rate,) in run(made, both, 5)]
    assert rates == pytest.approx([1.0, 2.0 * 0.5, 3.0 * 0.25, 3.0 * 0.125, 3.0 * 0.0625])


def test_a_resumed_schedule_goes_on_where_it_was():
    made = optimizer(0.1)
    scheduler = LinearScalingLR(made, ranks=4, warmup_steps=6)
    run(made, scheduler, 3)
    saved, group = scheduler.state_dict(), made.state_dict()
    expected = run(made, scheduler, 5)
    resumed = optimizer(0.1)
    other = LinearScalingLR(resumed, ranks=4, warmup_steps=6)
    resumed.load_state_dict(group)
    other.load_state_dict(saved)
    assert run(resumed, other, 5) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 0, "warmup_steps": 1}, "ranks=0 must be an integer of at least 1"),
        ({"ranks": 2.0, "warmup_steps": 1}, r"ranks=2\.0"),
        ({"ranks": 2, "warmup_steps": -1}, "warmup_steps=-1 must be an integer of at least 0"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        LinearScalingLR(optimizer(0.1), **settings)

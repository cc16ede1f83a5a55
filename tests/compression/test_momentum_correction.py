"""Momentum before compression: the momentum that an uncompressed training would have."""

import pytest
import torch
from sole_tensor import SoleTensor
from torch import nn

from gradsieve import Compression, ConfigurationError, MomentumCorrection, Velocity, decode


def gradient(step: int, elements: int = 500) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(step))


def received(payload: torch.Tensor, elements: int = 500) -> torch.Tensor:
    total = torch.zeros(elements)
    decode(payload, elements).add_into(total)
    return total


def layer(density: float, **settings: object) -> SoleTensor:
    return SoleTensor(Compression.topk(density, momentum=MomentumCorrection(**settings)), 500)


def test_at_density_1_without_masking_plain_sgd_moves_like_sgd_with_momentum():
    compressed = nn.Parameter(torch.zeros(500))
    reference = nn.Parameter(torch.zeros(500))
    plain = torch.optim.SGD([compressed], lr=0.1)
    with_momentum = torch.optim.SGD([reference], lr=0.1, momentum=0.9)
    made = layer(1.0, masking=False)
    for step in range(20):
        compressed.grad = received(made.compress(gradient(step), step=step))
        reference.grad = gradient(step)
        made.commit()
        plain.step()
        with_momentum.step()
    # both round m * u + g; they may do so in one or in two roundings
    torch.testing.assert_close(compressed, reference, rtol=1e-5, atol=1e-6)


def test_at_density_1_with_masking_there_is_no_momentum():
    made = layer(1.0)
    for step in range(3):
        assert torch.equal(received(made.compress(gradient(step), step=step)), gradient(step))
        made.commit()


def test_an_entry_gathers_momentum_while_it_waits_and_loses_it_when_sent():
    made = SoleTensor(Compression.topk(0.5, momentum=MomentumCorrection(momentum=0.5)), 2)
    sent = []
    for step, values in enumerate([[4.0, 1.0], [0.0, 1.0], [0.0, 0.0]]):
        sent.append(received(made.compress(torch.tensor(values), step=step), 2).tolist())
        made.commit()
    # entry 1: u = 1, then 1.5: 2.5 has gathered and is sent with its velocity; nothing comes after
    assert sent == [[4.0, 0.0], [0.0, 2.5], [0.0, 0.0]]


def test_all_velocities_arrive_or_are_left():
    made = layer(0.05, masking=False)
    velocity, velocities, sent = (torch.zeros(500, dtype=torch.float64) for _ in range(3))
    for step in range(30):
        sent += received(made.compress(gradient(step), step=step))
        made.commit()
        velocity = 0.9 * velocity + gradient(step)
        velocities += velocity
    left = made.state_dict()["feedback"]["residual"]
    # 30 steps of fp32 rounding of sums below 100
    torch.testing.assert_close(sent + left, velocities, rtol=0, atol=30 * 100 * 2.0**-23)


def test_a_rolled_back_step_restores_velocity_and_residual_bit_for_bit():
    made = layer(0.05)
    for step in range(4):
        made.compress(gradient(step), step=step)
        made.commit()
    before = made.state_dict()["feedback"]
    made.compress(1e3 * gradient(4), step=4)
    made.rollback()
    made.commit()
    after = made.state_dict()["feedback"]
    for field in ("residual", "velocity"):
        assert torch.equal(before[field].view(torch.int32), after[field].view(torch.int32))


def test_loss_scales_do_not_change_the_velocity():
    plain, scaled = layer(0.05), layer(0.05)
    for step, scale in enumerate([2.0**16, 2.0**15, 2.0**17]):
        payload = scaled.compress(gradient(step) * scale, step=step, unscale=1 / scale)
        assert torch.equal(plain.compress(gradient(step), step=step), payload)
        plain.commit()
        scaled.commit()


def test_a_refused_gradient_leaves_the_velocity_alone():
    made = layer(0.05)
    made.compress(gradient(0), step=0)
    made.commit()
    before = made.state_dict()["feedback"]["velocity"]
    made.compress(torch.full((500,), float("inf")), step=1)
    assert made.refused
    made.commit()
    assert torch.equal(made.state_dict()["feedback"]["velocity"], before)


def test_it_works_without_error_feedback():
    config = Compression.topk(0.5, momentum=MomentumCorrection(masking=False), error_feedback=False)
    made = SoleTensor(config, 2)
    for step in range(2):
        payload = made.compress(torch.tensor([2.0, 1.0]), step=step)
        made.commit()
    assert received(payload, 2).tolist() == [pytest.approx(3.8), 0.0]
    assert list(made.state_dict()["feedback"]) == ["velocity"]


def test_velocities_of_other_dtypes_and_layouts_are_kept_in_their_own():
    velocity = Velocity(0.5, 6, dtype=torch.float64)
    given = torch.arange(6.0, dtype=torch.float64).view(2, 3).t()
    assert velocity.advance(given).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    velocity.update(torch.tensor([1]))
    velocity.commit()
    assert velocity.advance(torch.zeros(6)).tolist() == [0.0, 0.0, 0.5, 2.0, 1.0, 2.5]
    assert velocity.state_dict()["velocity"].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 400_001])  # the last in parts, one per thread
def test_a_velocity_has_the_bits_of_products_and_a_sum_that_are_rounded_in_turn(rows, dtype):
    given = torch.randn(2, rows, generator=torch.Generator().manual_seed(rows)).to(dtype).t()
    velocity, before = Velocity(0.9, 2 * rows), gradient(1, 2 * rows)
    velocity.load_state_dict({"velocity": before})
    kept = given.clone()
    expected = before * torch.tensor(0.9) + given.float().reshape(-1) * torch.tensor(0.3)
    assert torch.equal(velocity.advance(given, 0.3), expected)
    assert torch.equal(given, kept)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        pytest.param(None, "'velocity': found NoneType", id="saved without momentum"),
        pytest.param(torch.zeros(3), r"\[3\], expected torch.float32 \[500\]", id="shape"),
        pytest.param(torch.full((500,), float("nan")), "'velocity': it holds NaN", id="not finite"),
    ],
)
def test_a_velocity_that_does_not_fit_is_refused_and_changes_nothing(saved, message):
    made = layer(0.05)
    made.compress(gradient(0), step=0)
    made.commit()
    state = made.state_dict()
    state["feedback"] = {"residual": torch.ones(500), "velocity": saved}
    before = made.state_dict()["feedback"]
    with pytest.raises(ConfigurationError, match=message):
        made.load_state_dict(state)
    after = made.state_dict()["feedback"]
    assert all(torch.equal(before[field], after[field]) for field in before)


def test_a_compressor_without_momentum_refuses_to_lose_a_saved_velocity():
    saved = layer(0.05)
    saved.compress(gradient(0), step=0)
    saved.commit()
    plain = SoleTensor(Compression.topk(0.05), 500, name="weight")
    plain.compress(gradient(1), step=0)
    plain.commit()
    before = plain.state_dict()["feedback"]["residual"]
    with pytest.raises(ConfigurationError, match="'weight': field 'velocity'.*no momentum correction"):
        plain.load_state_dict(saved.state_dict())
    assert torch.equal(plain.state_dict()["feedback"]["residual"], before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"momentum=1\.0 must be a number in \[0, 1\)"),
        ({"momentum": "0.9"}, "momentum='0.9'"),
        ({"masking": 1}, "masking=1 must be True or False"),
        ({"allow_double_momentum": "yes"}, "allow_double_momentum='yes' must be True or False"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        MomentumCorrection(**settings)

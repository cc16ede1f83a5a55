"""What was selected and did not arrive comes back, and is sent later."""

import pytest
import torch
from sole_tensor import SoleTensor

import gradsieve

ELEMENTS = 2000
KINDS = {
    "residual": gradsieve.Compression.topk(density=0.05),
    "bf16 residual": gradsieve.Compression.topk(density=0.05, residual_dtype="bfloat16"),
    "clipped": gradsieve.Compression.topk(density=0.05, clip_norm=1e30),
    "momentum": gradsieve.Compression.topk(density=0.05, momentum=gradsieve.MomentumCorrection()),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def gradient(seed: int) -> torch.Tensor:
    """Whole numbers that bf16 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 101, (ELEMENTS,), generator=generator).float()


def half_of(selected: gradsieve.SparseGradient) -> gradsieve.SparseGradient:
    return selected.keep_largest(selected.count // 2)[1]


@kinds
def test_what_arrived_and_what_is_left_add_up_to_what_was_given(kind):
    layer = SoleTensor(KINDS[kind], ELEMENTS)
    given = gradient(1)
    selected = layer.select(given, step=0)
    rejected = half_of(selected)
    layer.reclaim(rejected)
    layer.commit()
    left = layer.state_dict()["feedback"]["residual"].float()
    assert torch.equal(selected.dense() - rejected.dense() + left, given)


@kinds
def test_a_step_that_is_rolled_back_reclaims_nothing(kind):
    layer = SoleTensor(KINDS[kind], ELEMENTS)
    layer.select(gradient(1), step=0)
    layer.commit()
    before = layer.state_dict()["feedback"]["residual"]
    layer.reclaim(half_of(layer.select(gradient(2), step=1)))
    layer.rollback()
    assert torch.equal(layer.state_dict()["feedback"]["residual"], before)


@kinds
def test_a_tensor_that_takes_no_part_takes_over_what_the_way_dropped_of_the_others_sum(kind):
    layer = SoleTensor(KINDS[kind], ELEMENTS)
    dropped = half_of(layer.select(gradient(1), step=0))
    layer.commit()
    before = layer.state_dict()["feedback"]["residual"].float()
    layer.abstain()
    layer.reclaim(dropped)
    layer.commit()
    assert torch.equal(layer.state_dict()["feedback"]["residual"].float(), before + dropped.dense())


@kinds
def test_what_is_left_of_a_gradient_that_was_sent_whole_joins_the_next_one(kind):
    feedback = KINDS[kind].feedback(ELEMENTS, "cpu")
    feedback.begin(gradient(1))
    feedback.leave(gradient(2))
    feedback.rollback()
    feedback.begin(gradient(1))
    feedback.leave(gradient(2))
    feedback.commit()
    assert torch.equal(feedback.begin(gradient(3)).tensor(), gradient(2) + gradient(3))


def test_without_error_feedback_it_is_lost_as_everything_else_that_is_not_sent():
    layer = SoleTensor(gradsieve.Compression.topk(density=0.05, error_feedback=False), ELEMENTS)
    layer.reclaim(half_of(layer.select(gradient(1), step=0)))
    layer.commit()
    assert torch.equal(layer.select(gradient(2), step=1).dense(), layer.select(gradient(2), step=1).dense())
    assert layer.waiting() == 0


def test_a_bf16_residual_holds_what_is_too_large_at_its_largest_number():
    layer = SoleTensor(KINDS["bf16 residual"], ELEMENTS)
    selected = layer.select(torch.full((ELEMENTS,), 3.4e38), step=0)
    layer.reclaim(selected)
    layer.commit()
    assert torch.isfinite(layer.state_dict()["feedback"]["residual"]).all()


@pytest.mark.parametrize("value_dtype", ["float16", "int4"])
def test_a_payload_is_what_is_selected_rounded_and_the_residual_holds_the_difference(value_dtype):
    config = gradsieve.Compression.topk(density=0.05, value_dtype=value_dtype)
    layer, other = (SoleTensor(config, ELEMENTS) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(ELEMENTS, generator=generator)
    payload = gradsieve.decode(layer.compress(given, step=0), ELEMENTS)
    layer.commit()
    selected = other.select(given, step=0)
    other.commit()
    assert torch.equal(payload.indices, selected.indices)
    left = layer.state_dict()["feedback"]["residual"]
    assert torch.equal(left[selected.indices], selected.values - payload.values)
    assert not other.state_dict()["feedback"]["residual"][selected.indices].any()

"""The residual is a transaction per step, and takes gradients as they come."""

import pytest
import torch

from gradsieve import ConfigurationError, NoResidual, Residual, Selection, SparseGradient


def selection(accumulated: torch.Tensor, indices: list[int]) -> Selection:
    chosen = torch.tensor(indices, dtype=torch.int64)
    return Selection(chosen, accumulated[chosen], 0.0)


def take(residual: Residual, gradient: torch.Tensor, indices: list[int]) -> torch.Tensor:
    chosen = selection(residual.begin(gradient).tensor(), indices)
    residual.update(chosen)
    return chosen.values


def stored(residual: Residual) -> list[float]:
    return residual.state_dict()["residual"].tolist()


def test_a_committed_step_leaves_what_was_not_sent():
    residual = Residual(3)
    assert take(residual, torch.tensor([1.0, 2.0, 3.0]), [2]).tolist() == [3.0]
    residual.commit()
    assert stored(residual) == [1.0, 2.0, 0.0]
    assert take(residual, torch.tensor([1.0, 1.0, 1.0]), [1]).tolist() == [3.0]


def test_what_rounding_took_from_a_sent_value_stays():
    residual = Residual(2)
    chosen = selection(residual.begin(torch.tensor([1.5, 4.0])).tensor(), [0])
    residual.update(chosen)
    residual.reclaim(SparseGradient(2, chosen.indices, chosen.values - 1.25))
    residual.commit()
    assert stored(residual) == [0.25, 4.0]


def test_a_rolled_back_step_leaves_the_residual_bit_for_bit():
    residual = Residual(1000)
    generator = torch.Generator().manual_seed(0)
    take(residual, torch.randn(1000, generator=generator), [3, 5])
    residual.commit()
    before = residual.state_dict()["residual"]
    take(residual, torch.randn(1000, generator=generator), [1, 2])
    residual.rollback()
    assert torch.equal(residual.state_dict()["residual"].view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_ending_a_step_twice_is_ending_it_once(end):
    residual = Residual(2)
    take(residual, torch.tensor([1.0, 2.0]), [1])
    getattr(residual, end)()
    once = stored(residual)
    residual.commit()
    residual.rollback()
    assert stored(residual) == once


def test_beginning_again_rolls_the_open_step_back():
    residual = Residual(2)
    take(residual, torch.tensor([5.0, 6.0]), [0])
    take(residual, torch.tensor([1.0, 2.0]), [0])
    residual.commit()
    assert stored(residual) == [0.0, 2.0]


def test_beginning_again_leaves_nothing_of_the_open_step_to_commit():
    residual = Residual(2)
    take(residual, torch.tensor([5.0, 6.0]), [0])
    residual.begin(torch.tensor([1.0, float("nan")]))
    residual.commit()
    assert stored(residual) == [0.0, 0.0]


def test_a_step_that_kept_nothing_commits_nothing():
    residual = Residual(2)
    residual.begin(torch.tensor([5.0, float("nan")]))
    residual.commit()
    assert stored(residual) == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "gradient",
    [
        pytest.param(
            torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last), id="channels_last"
        ),
        pytest.param(torch.arange(24.0).view(4, 6).t(), id="transposed"),
        pytest.param(torch.arange(48.0)[::2], id="strided"),
        pytest.param(torch.ones(24, 1).expand(24, 1), id="contiguous"),
        pytest.param(torch.ones(1).expand(24), id="expanded"),
    ],
)
@pytest.mark.parametrize("unscale", [1.0, 0.125])
@pytest.mark.parametrize("feedback", [Residual(24), NoResidual()], ids=["residual", "no residual"])
def test_any_layout_and_dtype_is_read_in_row_major_order_and_left_alone(feedback, gradient, dtype, unscale):
    given = gradient.to(dtype)
    before = given.clone()
    accumulated = feedback.begin(given, unscale).tensor()
    assert accumulated.dtype == torch.float32
    assert accumulated.is_contiguous()
    assert accumulated.tolist() == [value * unscale for value in before.float().flatten().tolist()]
    assert torch.equal(given, before)


def test_a_scalar_gradient_is_one_element():
    assert Residual(1).begin(torch.tensor(3.0)).tensor().tolist() == [3.0]


def test_a_state_is_a_copy_in_both_directions():
    residual = Residual(2)
    take(residual, torch.tensor([1.0, 2.0]), [0])
    residual.commit()
    state = residual.state_dict()
    other = Residual(2)
    other.load_state_dict(state)
    state["residual"].zero_()
    assert stored(residual) == stored(other) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param({}, "'residual': missing", id="missing"),
        pytest.param({"residual": torch.zeros(3)}, r"\[3\], expected torch.float32 \[2\]", id="shape"),
        pytest.param({"residual": torch.zeros(2).double()}, "found torch.float64", id="dtype"),
        pytest.param({"residual": torch.tensor([0.0, float("nan")])}, "NaN or infinity", id="not finite"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state, message):
    residual = Residual(2)
    take(residual, torch.tensor([1.0, 2.0]), [0])
    residual.commit()
    with pytest.raises(ConfigurationError, match=message):
        residual.load_state_dict(state)
    assert stored(residual) == [0.0, 2.0]


def test_no_residual_refuses_a_saved_residual():
    with pytest.raises(ConfigurationError, match="error_feedback=False"):
        NoResidual().load_state_dict({"residual": torch.zeros(2)})

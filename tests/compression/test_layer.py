"""One tensor's way from gradient to payload, as a transaction."""

import copy
import functools

import pytest
import torch
from sole_tensor import SoleTensor

from gradsieve import (
    Compression,
    ConfigurationError,
    DensityWarmup,
    MomentumCorrection,
    Refusal,
    decode,
)

MAKERS = [
    pytest.param(Compression.topk, id="topk"),
    pytest.param(Compression.group_topk, id="group_topk"),
    pytest.param(Compression.laplace, id="laplace"),
    pytest.param(Compression.sampled, id="sampled"),
    pytest.param(functools.partial(Compression.layered, adapt_steps=2, reanchor_steps=3), id="layered"),
    pytest.param(functools.partial(Compression.importance, period=2, loss_power=0), id="importance"),
    pytest.param(
        functools.partial(Compression.laplace, momentum=MomentumCorrection(), clip_norm=60.0),
        id="momentum and clipping",
    ),
    pytest.param(
        functools.partial(Compression.layered, warmup=DensityWarmup(steps=5)), id="warm-up over layered"
    ),
]
SELECTING = MAKERS[:-2]  # those that send entries of gradient plus residual, at a density of 0.01


def noise(seed: int, elements: int = 4000) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def train(layer: SoleTensor, steps: range) -> list[bytes]:
    payloads = []
    for step in steps:
        payloads.append(layer.compress(noise(step), step=step).numpy().tobytes())
        layer.commit()
    return payloads


@pytest.mark.parametrize("make", SELECTING)
def test_a_payload_holds_the_selected_entries_of_gradient_plus_residual(make):
    layer = SoleTensor(make(0.01), 4000)
    first = decode(layer.compress(noise(0), step=0), 4000)
    layer.commit()
    assert first.indices is not None
    assert torch.equal(first.values, noise(0)[first.indices])
    left = noise(0)
    left[first.indices] = 0
    second = decode(layer.compress(noise(1), step=1), 4000)
    assert second.indices is not None
    assert torch.equal(second.values, (left + noise(1))[second.indices])
    assert layer.kept == second.count == second.indices.numel()


@pytest.mark.parametrize("make", MAKERS)
def test_a_rolled_back_step_sends_the_same_bytes_when_repeated(make):
    layer = SoleTensor(make(0.01), 4000)
    train(layer, range(3))
    first = layer.compress(noise(3), step=3)
    layer.rollback()
    layer.rollback()
    assert torch.equal(layer.compress(noise(3), step=3), first)


@pytest.mark.parametrize("make", MAKERS)
def test_a_tensor_that_takes_no_part_sends_nothing_and_keeps_all_that_it_remembers(make):
    layer, twin = SoleTensor(make(0.01), 4000), SoleTensor(make(0.01), 4000)
    train(layer, range(3))
    train(twin, range(3))
    waiting = layer.state_dict()["feedback"]["residual"].norm().item()
    for end in (layer.commit, layer.rollback):
        assert decode(layer.encode(layer.abstain()), 4000).count == layer.kept == 0
        end()
        assert layer.waiting() == waiting > 0
    assert torch.equal(layer.compress(noise(3), step=3), twin.compress(noise(3), step=3))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("places", [[0], [3999], [1023, 1024, 2000], list(range(4000))], ids=len)
def test_a_non_finite_gradient_is_refused_and_changes_nothing(make, bad, places):
    layer, twin = SoleTensor(make(0.01), 4000), SoleTensor(make(0.01), 4000)
    train(layer, range(3))
    train(twin, range(3))
    gradient = noise(3)
    gradient[places] = bad
    payload = decode(layer.compress(gradient, step=3), 4000)
    assert layer.refused
    assert payload.refused
    assert payload.refusal is Refusal.NON_FINITE
    assert layer.kept == payload.count == 0
    layer.commit()
    assert train(layer, range(3, 6)) == train(twin, range(3, 6))
    assert not layer.refused


@pytest.mark.parametrize("make", MAKERS)
def test_a_non_finite_gradient_in_the_very_first_step_is_refused(make):
    layer = SoleTensor(make(0.01), 4000)
    gradient = noise(0)
    gradient[77] = float("nan")
    layer.compress(gradient, step=0)
    assert layer.refused
    assert layer.state_dict()["threshold"] is None


def test_a_refusal_after_a_step_left_open_leaves_nothing_of_it_to_commit():
    layer = SoleTensor(Compression.laplace(0.01), 4000)
    train(layer, range(2))
    before = layer.state_dict()
    layer.compress(1000 * noise(2), step=2)
    layer.compress(torch.full((4000,), float("nan")), step=2)
    layer.commit()
    after = layer.state_dict()
    assert after["threshold"] == before["threshold"]
    assert torch.equal(after["feedback"]["residual"], before["feedback"]["residual"])


def test_a_sum_that_overflows_is_refused():
    layer = SoleTensor(Compression.topk(0.5), 2)
    layer.compress(torch.tensor([3e38, 2.9e38]), step=0)
    layer.commit()
    layer.compress(torch.tensor([0.0, 3e38]), step=1)
    assert layer.refused


def test_loss_scales_do_not_change_what_the_residual_means():
    plain, scaled = (SoleTensor(Compression.laplace(0.01), 4000) for _ in range(2))
    for step, scale in enumerate([2.0**16, 2.0**15, 2.0**17]):
        assert torch.equal(
            plain.compress(noise(step), step=step),
            scaled.compress(noise(step) * scale, step=step, unscale=1 / scale),
        )
        plain.commit()
        scaled.commit()


def test_the_warm_up_sends_more_in_the_first_steps():
    layer = SoleTensor(Compression.topk(0.01, warmup=DensityWarmup(start=0.25, steps=2)), 4000)
    kept = []
    for step in range(4):
        layer.compress(noise(step), step=step)
        layer.commit()
        kept.append(layer.kept)
    assert kept == [1000, 200, 40, 40]


def test_committing_after_a_rollback_keeps_the_threshold_of_before():
    layer = SoleTensor(Compression.laplace(0.01), 4000)
    train(layer, range(2))
    before = layer.state_dict()["threshold"]
    layer.compress(1000 * noise(2), step=2)
    layer.rollback()
    layer.commit()
    assert layer.state_dict()["threshold"] == before


@pytest.mark.parametrize("make", MAKERS)
def test_a_restored_compressor_goes_on_with_the_same_bytes(make):
    layer = SoleTensor(make(0.01), 4000)
    train(layer, range(4))
    restored = SoleTensor(make(0.01), 4000)
    restored.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert train(restored, range(4, 8)) == train(layer, range(4, 8))


def test_a_state_is_the_committed_one_even_in_the_middle_of_a_step():
    layer = SoleTensor(Compression.laplace(0.01), 4000)
    train(layer, range(2))
    before = layer.state_dict()
    layer.compress(noise(2), step=2)
    after = layer.state_dict()
    assert torch.equal(before["feedback"]["residual"], after["feedback"]["residual"])
    assert before["threshold"] == after["threshold"]


def test_a_state_survives_saving_with_weights_only(tmp_path):
    layer = SoleTensor(Compression.laplace(0.01), 4000)
    train(layer, range(2))
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    restored = SoleTensor(Compression.laplace(0.01), 4000)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert train(restored, range(2, 4)) == train(layer, range(2, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"elements": 5}, "'fc.weight'.*'elements': found 5, expected 4", id="another size"),
        pytest.param({"feedback": {}}, "'fc.weight'.*'residual'", id="no residual"),
        pytest.param(None, "'fc.weight'.*'elements': missing", id="foreign"),
    ],
)
def test_a_state_of_another_tensor_is_refused_by_name_and_changes_nothing(change, message):
    layer = SoleTensor(Compression.topk(0.5), 4, name="fc.weight")
    layer.compress(torch.arange(4.0), step=0)
    layer.commit()
    before = layer.state_dict()
    with pytest.raises(ConfigurationError, match=message):
        layer.load_state_dict({} if change is None else before | change)
    assert torch.equal(layer.state_dict()["feedback"]["residual"], before["feedback"]["residual"])


def test_a_gradient_of_another_size_is_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"'fc\.weight': the gradient has 5 elements, expected 4"):
        SoleTensor(Compression.topk(), 4, name="fc.weight").compress(torch.zeros(5), step=0)


@pytest.mark.parametrize("make", MAKERS)
def test_a_tensor_without_elements_gives_a_bare_header(make):
    layer = SoleTensor(make(0.01), 0)
    payload = layer.compress(torch.empty(0), step=0)
    layer.commit()
    assert payload.numel() == 16
    assert decode(payload, 0).count == 0
    assert not layer.refused


def test_a_laplace_layer_goes_on_after_a_step_without_any_gradient():
    layer = SoleTensor(Compression.laplace(0.01), 4000)
    assert layer.compress(torch.zeros(4000), step=0).numel() == 17
    layer.commit()
    layer.compress(noise(1), step=1)
    assert 32 <= layer.kept <= 50

"""The recording loss is torch's loss, and what it records costs nothing and waits for nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import gradsieve
from gradsieve import LossRecorder

SHAPES = {
    "classes": ((6, 5), (6,)),
    "one sample": ((5,), ()),
    "tokens": ((3, 5, 7), (3, 7)),
    "images": ((2, 5, 3, 4), (2, 3, 4)),
}


def case(shape: str, seed: int = 0, ignored: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(SHAPES[shape][0], generator=generator, requires_grad=True)
    target = torch.randint(5, SHAPES[shape][1], generator=generator)
    if ignored and target.dim():
        target.view(-1)[0] = -100
    return logits, target


@settings(max_examples=80)
@given(
    shape=st.sampled_from(list(SHAPES)),
    seed=st.integers(0, 10**6),
    ignored=st.booleans(),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_value_and_gradient_are_torchs_for_all_options(shape, seed, ignored, weighted, reduction, smoothing):
    logits, target = case(shape, seed, ignored)
    weight = torch.rand(5, generator=torch.Generator().manual_seed(seed)) + 0.1 if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    ours = gradsieve.cross_entropy(logits, target, recorder=LossRecorder(), **options)
    theirs = F.cross_entropy(logits, target, **options)
    torch.testing.assert_close(ours, theirs)
    gradient = torch.autograd.grad(ours.sum(), logits)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs.sum(), logits)[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_probabilities_are_reduced_as_torch_does(weighted, smoothing):
    logits, _ = case("tokens")
    target = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    options = {"weight": torch.arange(1.0, 6.0) if weighted else None, "label_smoothing": smoothing}
    recorder = LossRecorder()
    torch.testing.assert_close(
        gradsieve.cross_entropy(logits, target, recorder=recorder, **options),
        F.cross_entropy(logits, target, **options),
    )
    assert recorder.between(0, 1)[0].shape == (3, 7)


def test_another_ignored_class_and_positional_arguments_work_as_in_torch():
    logits, target = case("classes", seed=3)
    weight = torch.arange(1.0, 6.0)
    torch.testing.assert_close(
        gradsieve.cross_entropy(logits, target, weight, 2, "mean", 0.1, recorder=LossRecorder()),
        F.cross_entropy(logits, target, weight, ignore_index=2, label_smoothing=0.1),
    )


def test_a_batch_without_samples_has_the_mean_that_torch_gives_it():
    logits, target = case("classes")
    target.fill_(-100)
    assert bool(gradsieve.cross_entropy(logits, target, recorder=LossRecorder()).isnan())


def test_each_samples_loss_is_recorded_detached_and_ignored_ones_as_nan():
    logits, target = case("tokens", ignored=True)
    recorder = LossRecorder()
    gradsieve.cross_entropy(logits, target, recorder=recorder)
    (recorded,) = recorder.between(0, recorder.position)
    assert not recorded.requires_grad
    expected = F.cross_entropy(logits, target, reduction="none")
    assert torch.equal(recorded.isnan(), target == -100)
    assert torch.equal(recorded.nan_to_num(0.0), expected)


def test_an_evaluation_is_not_recorded():
    recorder = LossRecorder()
    with torch.no_grad():
        gradsieve.cross_entropy(*case("classes"), recorder=recorder)
    assert recorder.position == 0


def test_half_precision_logits_are_recorded_too():
    logits, target = case("classes")
    recorder = LossRecorder()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradsieve.cross_entropy(logits.bfloat16(), target, recorder=recorder)
    assert recorder.position == 1


def test_two_recorders_do_not_hear_each_other():
    first, second = LossRecorder(), LossRecorder()
    gradsieve.cross_entropy(*case("classes"), recorder=first)
    assert (first.position, second.position) == (1, 0)


@given(recorded=st.integers(0, 600), start=st.integers(0, 600), length=st.integers(0, 600))
def test_a_reader_gets_what_is_still_kept_of_its_stretch(recorded, start, length):
    recorder = LossRecorder()
    for number in range(recorded):
        recorder.record(torch.tensor(float(number)))
    found = [int(batch) for batch in recorder.between(start, start + length)]
    kept = range(max(recorded - 256, 0), recorded)
    assert found == [number for number in kept if start <= number < start + length]

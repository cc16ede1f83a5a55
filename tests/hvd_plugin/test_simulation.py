"""Simulated ranks train as real ones would: what is sent, what arrives, what is counted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression, LossRecorder, MomentumCorrection
from gradsieve_hvd.experiments.simulate import SimulatedRank, training
from gradsieve_hvd.experiments.simulate.budget import TOLERANCE, at_equal_bytes
from gradsieve_hvd.experiments.simulate.outcome import Outcome, Point, train
from gradsieve_hvd.experiments.simulate.watch import LayerWatch
from gradsieve_hvd.experiments.tasks import TASKS

STEPS = 3
ELEMENTS = 64 * 640 + 640 + 640 * 640 + 640 + 640 * 10 + 10


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def digits():
    return TASKS["digits"]()


def last_step(task, config, **settings):
    *_, last = training(task, config, **({"ranks": 2, "steps": STEPS} | settings))
    return last


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_sending_everything_by_a_rule_trains_like_dense(digits):
    dense, all_of_it = last_step(digits, None), last_step(digits, Compression.topk(1.0))
    torch.testing.assert_close(weights(dense.model), weights(all_of_it.model), rtol=0, atol=0)


def test_momentum_correction_takes_the_place_of_the_optimizers_momentum(digits):
    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    corrected = Compression.topk(1.0, momentum=MomentumCorrection(momentum=0.9, masking=False))
    dense = last_step(digits, None, optimizer=sgd)
    same = last_step(digits, corrected, optimizer=sgd)
    torch.testing.assert_close(weights(dense.model), weights(same.model), rtol=1e-4, atol=1e-6)


def test_dense_gradients_count_four_bytes_per_element_and_payloads_what_they_are_long(digits):
    assert last_step(digits, None).sent_bytes == 4 * ELEMENTS
    sparse = last_step(digits, Compression.topk(0.01))
    small = 4 * (ELEMENTS - 64 * 640 - 640 * 640)
    kept = sum(layer.kept for layer in sparse.ranks[0].layers.values())
    assert small + 4 * kept < sparse.ranks[0].sent_bytes < small + 8 * kept
    assert sparse.ranks[0].payload_bytes == sparse.ranks[0].sent_bytes - small


def test_every_rank_of_the_importance_rule_sees_its_own_samples_only(digits):
    step = last_step(digits, Compression.importance(0.01, network_power=0))
    first, second = (rank.recorder for rank in step.ranks)
    assert first is not second
    assert first.position == second.position == STEPS
    assert not torch.equal(first.between(0, 1)[0], second.between(0, 1)[0])


def test_a_rank_leaves_the_gradients_as_they_are(digits):
    model = digits.model(0)
    rank = SimulatedRank(Compression.laplace(0.05), model)
    gradients = {name: torch.randn(p.shape) for name, p in model.named_parameters()}
    before = {name: gradient.clone() for name, gradient in gradients.items()}
    arrived = rank.send(gradients)
    assert all(torch.equal(before[name], gradients[name]) for name in before)
    assert all(arrived[name].shape == gradients[name].shape for name in gradients)


def test_an_outcome_has_all_evaluations_the_last_one_at_the_end(digits):
    outcome = train(digits, None, ranks=2, steps=5, seed=0, evaluate_steps=2)
    assert [point.steps for point in outcome.curve] == [2, 4, 5]
    assert outcome.curve[-1].sent_bytes == outcome.sent_bytes == 5 * 4 * ELEMENTS


def watched(config, gradients):
    compressor = SoleTensor(config, 1000)
    watch = LayerWatch("weight", 1000)
    for step, gradient in enumerate(gradients):
        compressor.compress(gradient, step=step)
        compressor.commit()
        watch.observe(config, compressor)
    return watch


@pytest.mark.parametrize("make", [Compression.topk, Compression.group_topk])
def test_exact_rules_are_seen_to_be_exact(make):
    watch = watched(make(0.03), [torch.randn(1000) for _ in range(5)])
    assert (watch.selections, watch.inexact, watch.outside, watch.empty) == (5, 0, 0, 0)
    assert watch.kept_least == watch.kept_most == 1


def test_keeping_all_of_too_few_non_zeros_is_no_fault():
    watch = watched(Compression.laplace(0.03), [torch.zeros(1000), torch.zeros(1000)])
    assert (watch.selections, watch.short, watch.outside, watch.empty) == (2, 2, 0, 0)


class Blind:
    """A compressor that kept nothing of something."""

    density, kept = 0.03, 0

    def state_dict(self):
        return {"feedback": {"residual": torch.ones(1000)}}


def test_keeping_nothing_of_something_is_seen():
    watch = LayerWatch("weight", 1000)
    watch.observe(Compression.laplace(0.03), Blind())
    assert (watch.selections, watch.short, watch.outside, watch.empty) == (1, 0, 1, 1)


@given(
    base=st.floats(0, 1e6),
    slope=st.floats(1e6, 1e9),
    density=st.floats(0.001, 0.1),
    factor=st.floats(0.3, 3),
    curved=st.floats(-0.2, 0.2),
)
def test_a_fixed_density_with_equal_bytes_is_found(base, slope, density, factor, curved):
    def training_at(each):
        sent = base + slope * each * (each / density) ** curved
        return Outcome(curve=[Point(1, sent, 0.0)], sent_bytes=1e9 + sent, payload_bytes=sent)

    wanted = training_at(density * factor).payload_bytes
    found, outcome = at_equal_bytes(wanted, density, training_at(density), training_at)
    assert outcome.payload_bytes == training_at(found).payload_bytes
    assert abs(outcome.payload_bytes - wanted) <= TOLERANCE * wanted


def test_the_small_character_model_is_small_and_records_a_loss_per_character():
    task = TASKS["charlm-small"]()
    model, recorder = task.model(0), LossRecorder()
    assert sum(parameter.numel() for parameter in model.parameters()) == 142_880
    loss = task.loss(model, step=0, rank=0, seed=0, recorder=recorder)
    (samples,) = recorder.between(0, 1)
    assert samples.shape == (4 * 64,)
    assert loss.item() == pytest.approx(samples.mean().item(), rel=1e-5)

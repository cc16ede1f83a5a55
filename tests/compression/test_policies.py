"""What a compressor asks of its policy and tells it, and what a rolled back step leaves behind: nothing."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import (
    Compression,
    ConfigurationError,
    Decision,
    DensityWarmup,
    FixedPolicy,
    LossRecorder,
    Outcome,
    WarmupPolicy,
)

RECORDER = LossRecorder()
ADAPTIVE = [
    pytest.param(functools.partial(Compression.layered, adapt_steps=4, reanchor_steps=3), id="layered"),
    pytest.param(functools.partial(Compression.importance, period=2, recorder=RECORDER), id="importance"),
    pytest.param(
        functools.partial(Compression.layered, adapt_steps=2, warmup=DensityWarmup(steps=3)),
        id="warm-up over layered",
    ),
]


def noise(step: int, elements: int = 4000) -> torch.Tensor:
    """Fewer large entries from step to step, so that the kept energy moves."""
    sharpness = torch.randn(elements, generator=torch.Generator().manual_seed(step)).mul(step % 7 / 3).exp()
    return sharpness * torch.randn(elements, generator=torch.Generator().manual_seed(step + 1000))


def compress(layer: SoleTensor, step: int) -> bytes:
    RECORDER.record(torch.tensor([1.0 + step % 5, 2.0]))
    return layer.compress(noise(step), step=step).numpy().tobytes()


class Scripted:
    """A policy part that decides what it was told to, and writes down what it hears."""

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = list(decisions)
        self.heard: list[object] = []

    def decide(self, step: int) -> Decision:
        return self._decisions[step]

    def observe(self, outcome: Outcome) -> None:
        self.heard.append(outcome)

    def commit(self) -> None:
        self.heard.append("commit")

    def rollback(self) -> None:
        self.heard.append("rollback")

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


def test_a_compressor_does_what_its_policy_decides_and_tells_it_the_outcome():
    policy = Scripted(Decision(0.01), Decision(0.1, measure=True), Decision(0.01))
    layer = SoleTensor(Compression.topk(), 4000, policy=policy)
    for step, kept in enumerate([40, 400, 40]):
        layer.compress(noise(step), step=step)
        assert layer.kept == kept
        layer.commit()
    outcomes = [heard for heard in policy.heard if isinstance(heard, Outcome)]
    assert [(outcome.elements, outcome.kept) for outcome in outcomes] == [(4000, 40), (4000, 400), (4000, 40)]
    assert [outcome.gain is None for outcome in outcomes] == [True, False, True]
    assert 0.1 < (outcomes[1].gain or 0.0) < 1.0
    assert outcomes[2].threshold == layer.threshold
    assert policy.heard[-2:] == [outcomes[2], "commit"]


def test_a_refused_gradient_is_no_outcome():
    policy = Scripted(Decision(0.01))
    layer = SoleTensor(Compression.topk(), 3, policy=policy)
    layer.compress(torch.tensor([1.0, float("nan"), 2.0]), step=0)
    assert policy.heard == ["rollback"]


def test_a_policy_that_wants_the_threshold_found_anew_gets_it():
    layer = SoleTensor(
        Compression.layered(), 4000, policy=Scripted(Decision(0.01), Decision(0.01, refresh_threshold=True))
    )
    layer.compress(noise(0), step=0)
    layer.commit()
    layer.compress(1000 * noise(1), step=1)
    assert layer.kept == 40


@pytest.mark.parametrize("make", ADAPTIVE)
@settings(max_examples=15)
@given(skipped=st.lists(st.integers(0, 11), max_size=6))
def test_steps_that_were_rolled_back_leave_no_trace(make, skipped):
    layer, twin = (SoleTensor(make(0.01), 4000) for _ in range(2))
    for step in range(12):
        for _ in range(skipped.count(step)):
            before = layer.state_dict()
            layer.compress(100 * noise(step + 50), step=step)
            layer.rollback()
            assert layer.state_dict()["policy"] == before["policy"]
        assert compress(layer, step) == twin.compress(noise(step), step=step).numpy().tobytes()
        layer.commit()
        twin.commit()


@pytest.mark.parametrize("make", ADAPTIVE)
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_a_restored_policy_goes_on_with_the_same_bytes(make, steps):
    layer, restored = (SoleTensor(make(0.01), 4000) for _ in range(2))
    for step in range(steps):
        compress(layer, step)
        layer.commit()
    restored.load_state_dict(layer.state_dict())
    for step in range(steps, 20):
        assert compress(layer, step) == restored.compress(noise(step), step=step).numpy().tobytes()
        layer.commit()
        restored.commit()
    assert layer.state_dict()["policy"] == restored.state_dict()["policy"]


@pytest.mark.parametrize("make", ADAPTIVE)
def test_committing_twice_is_committing_once(make):
    layer = SoleTensor(make(0.01), 4000)
    compress(layer, 0)
    layer.commit()
    before = layer.state_dict()["policy"]
    layer.commit()
    assert layer.state_dict()["policy"] == before


def test_a_state_of_another_policy_is_refused_by_name_and_changes_nothing():
    layered = SoleTensor(Compression.layered(), 4000, name="fc.weight")
    fixed = SoleTensor(Compression.laplace(), 4000, name="fc.weight")
    for layer in (layered, fixed):
        layer.compress(noise(0), step=0)
        layer.commit()
    for layer, other in ((layered, fixed), (fixed, layered)):
        before = layer.state_dict()
        with pytest.raises(ConfigurationError, match=r"state of 'fc\.weight': saved state, field '.*'"):
            layer.load_state_dict(other.state_dict())
        after = layer.state_dict()
        assert (before["policy"], before["threshold"]) == (after["policy"], after["threshold"])
        assert torch.equal(before["feedback"]["residual"], after["feedback"]["residual"])


def test_a_residual_that_does_not_fit_leaves_the_policy_alone():
    layer = SoleTensor(Compression.layered(adapt_steps=1), 4000)
    state = layer.state_dict()
    compress(layer, 0)
    layer.commit()
    before = layer.state_dict()["policy"]
    with pytest.raises(ConfigurationError, match="residual"):
        layer.load_state_dict(state | {"feedback": {}})
    assert layer.state_dict()["policy"] == before


def test_a_warm_up_ends_at_whatever_the_inner_policy_decides():
    class Rising(FixedPolicy):
        def layer(self, name, elements):
            return Scripted(
                *(Decision(0.01 * (1 + step), refresh_threshold=step == 1, measure=True) for step in range(4))
            )

    part = WarmupPolicy(Rising(0.01), DensityWarmup(start=0.16, steps=2)).layer("a", 10)
    decisions = [part.decide(step) for step in range(4)]
    assert [decision.density for decision in decisions] == pytest.approx(
        [0.16, (0.16 * 0.02) ** 0.5, 0.03, 0.04]
    )
    assert [decision.refresh_threshold for decision in decisions] == [False, True, False, False]
    assert [decision.measure for decision in decisions] == [False, False, True, True]


def test_a_warm_up_never_sends_less_than_the_inner_policy_wants():
    part = WarmupPolicy(FixedPolicy(0.5), DensityWarmup(start=0.25, steps=10)).layer("a", 10)
    assert part.decide(3).density == 0.5


def test_layer_parts_learn_nothing_while_the_warm_up_lasts():
    inner = Scripted(*[Decision(0.01)] * 3)

    class One(FixedPolicy):
        def layer(self, name, elements):
            return inner

    part = WarmupPolicy(One(0.01), DensityWarmup(steps=2)).layer("a", 10)
    for step in range(3):
        part.decide(step)
        part.observe(Outcome(10, step, 1.0))
    assert inner.heard == [Outcome(10, 2, 1.0)]


def test_a_warm_up_passes_on_what_the_network_takes():
    policy = Compression.importance(
        warmup=DensityWarmup(steps=5), period=1, recorder=RECORDER, loss_power=0
    ).policy()
    assert policy.times_exchanges
    policy.observe_exchange(2.0, 10)
    policy.commit()
    assert policy.state_dict()["seconds_per_byte"] == 0.2
    restored = Compression.importance(warmup=DensityWarmup(steps=5), recorder=RECORDER).policy()
    restored.load_state_dict(policy.state_dict())
    assert restored.state_dict() == policy.state_dict()

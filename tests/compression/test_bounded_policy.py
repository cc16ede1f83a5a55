"""A plan from outside changes how much any policy sends, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import (
    BoundedPolicy,
    Compression,
    CompressionConfig,
    ConfigurationError,
    DensityPlan,
    DensityWarmup,
    FixedPolicy,
    Outcome,
    Steering,
)

densities = st.integers(1, 1000).map(lambda permille: permille / 1000)
CONFIGURATIONS = [
    pytest.param(maker(density=0.01, min_elements=0), id=maker.__name__)
    for maker in (
        Compression.topk,
        Compression.group_topk,
        Compression.laplace,
        Compression.sampled,
        Compression.layered,
        Compression.importance,
    )
]


def compressor(config: CompressionConfig, steering: Steering) -> SoleTensor:
    return SoleTensor(config, 20_000, policy=config.policy(steering).layer("layer", 20_000))


def kept(layer: SoleTensor, step: int) -> int:
    layer.compress(torch.randn(20_000, generator=torch.Generator().manual_seed(step)), step=step)
    layer.commit()
    return layer.kept


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_every_method_sends_what_is_planned_from_the_next_step_on(config: CompressionConfig) -> None:
    steering = Steering()
    layer = compressor(config, steering)
    assert 100 <= kept(layer, 0) <= 250
    steering.plan = DensityPlan(density=0.05)
    assert 800 <= kept(layer, 1) <= 1250
    steering.plan = DensityPlan(highest=0.002)
    assert kept(layer, 2) <= 50
    steering.plan = DensityPlan()
    assert 100 <= kept(layer, 3) <= 250


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_without_a_plan_nothing_differs(config: CompressionConfig) -> None:
    steered, plain = compressor(config, Steering()), SoleTensor(config, 20_000)
    for step in range(5):
        gradient = torch.randn(20_000, generator=torch.Generator().manual_seed(step))
        assert torch.equal(steered.compress(gradient, step=step), plain.compress(gradient, step=step))
        steered.commit()
        plain.commit()


@given(densities, densities)
def test_a_planned_density_is_met_exactly(configured: float, planned: float) -> None:
    policy = BoundedPolicy(FixedPolicy(configured), configured, Steering(DensityPlan(density=planned)))
    assert policy.layer("layer", 10).decide(0).density == planned


@given(densities, densities, densities, densities)
def test_limits_hold_whatever_is_decided(
    configured: float, decided: float, first: float, second: float
) -> None:
    plan = DensityPlan(lowest=min(first, second), highest=max(first, second))
    density = (
        BoundedPolicy(FixedPolicy(decided), configured, Steering(plan)).layer("layer", 10).decide(0).density
    )
    assert min(first, second) <= density <= max(first, second)


def test_layers_keep_their_shares_when_the_budget_changes() -> None:
    class Shares(FixedPolicy):
        def layer(self, name: str, elements: int) -> Any:
            return FixedPolicy(0.02 if name == "wide" else 0.005).layer(name, elements)

    policy = BoundedPolicy(Shares(0.01), 0.01, Steering(DensityPlan(density=0.1)))
    assert policy.layer("wide", 10).decide(0).density == pytest.approx(0.2)
    assert policy.layer("narrow", 10).decide(0).density == pytest.approx(0.05)


def test_a_layer_that_was_cut_off_observes_nothing() -> None:
    seen = []

    class Watching(FixedPolicy):
        def layer(self, name: str, elements: int) -> Any:
            inner = super().layer(name, elements)

            class Layer:
                decide = staticmethod(inner.decide)
                observe = staticmethod(seen.append)

            return Layer()

    steering = Steering(DensityPlan(density=0.02))
    layer = BoundedPolicy(Watching(0.01), 0.01, steering).layer("layer", 10)
    outcome = Outcome(10, 1, 0.5, 0.9)
    layer.decide(0)
    layer.observe(outcome)
    steering.plan = DensityPlan(highest=0.001)
    layer.decide(1)
    layer.observe(outcome)
    assert seen == [outcome]


def test_a_warm_up_ends_at_the_planned_density() -> None:
    steering = Steering(DensityPlan(density=0.002))
    config = Compression.topk(density=0.01, warmup=DensityWarmup(start=0.25, steps=4))
    layer = config.policy(steering).layer("layer", 10)
    assert layer.decide(0).density == pytest.approx(0.25)
    assert layer.decide(4).density == 0.002


@pytest.mark.parametrize(
    "wrong",
    [{"density": 0.0}, {"density": 1.5}, {"lowest": 0.2, "highest": 0.1}, {"density": 0.1, "lowest": 0.2}],
    ids=str,
)
def test_plans_that_contradict_themselves_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="DensityPlan"):
        DensityPlan(**wrong)

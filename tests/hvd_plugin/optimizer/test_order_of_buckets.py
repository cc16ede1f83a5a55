"""In which order buckets leave, and when gradients are put into them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training import laplace

import gradsieve_hvd
from gradsieve import Compression
from gradsieve_hvd.optimizer import plan as plans
from gradsieve_hvd.optimizer.paths import PATHS
from gradsieve_hvd.optimizer.plan import BucketPlan
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

LARGE, SMALL = 20_000, 3_000


def planned(sizes: list[int], path: str, groups: dict[str, int]) -> tuple[BucketPlan, list[str]]:
    parameters = {f"t{number}": nn.Parameter(torch.empty(size)) for number, size in enumerate(sizes)}
    plan = BucketPlan(Compression.laplace(min_elements=LARGE), PATHS[path], groups)
    plan.extend(parameters)
    return plan, list(parameters)


@pytest.fixture(autouse=True, scope="module")
def small_buckets():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "BUCKET_ELEMENTS", 2 * LARGE)
        yield


@given(
    sizes=st.lists(st.sampled_from([LARGE, LARGE + 1, SMALL]), max_size=30),
    path=st.sampled_from(["allgather", "auto", "dense", "lowrank"]),
    groups=st.dictionaries(st.integers(0, 29).map("t{}".format), st.integers(0, 2), max_size=8),
)
def test_every_tensor_leaves_once_and_the_bucket_that_counts_ranks_last_but_for_other_dense_ones(
    sizes, path, groups
):
    plan, names = planned(sizes, path, groups)
    leaving = [name for bucket in plan.buckets for name in bucket.sizes]
    assert sorted(leaving) == sorted(names)
    assert all(name in plan.bucket_of(name).sizes for name in names)
    assert [bucket.counts for bucket in plan.dense] == [True] + [False] * (len(plan.dense) - 1)
    assert not any(bucket.counts or bucket.trailer for bucket in plan.early)
    assert plan.buckets[len(plan.buckets) - len(plan.dense) :] == plan.dense
    assert len({bucket.name for bucket in plan.buckets}) == len(plan.buckets)


@given(sizes=st.lists(st.sampled_from([LARGE, LARGE + 1, SMALL]), max_size=30))
def test_what_is_ready_early_leaves_before_the_last_bucket_and_nothing_that_is_ready_later(sizes):
    plan, names = planned(sizes, "allgather", {})
    early = {name for bucket in plan.early for name in bucket.sizes}
    small = [name for name, size in zip(names, sizes, strict=True) if size == SMALL]
    if len(plan.sparse) < 2:
        assert not early
        return
    full = max(names.index(name) for name in plan.sparse[-2].sizes)
    ready = {name for name in small if names.index(name) < full}
    assert early == (ready if len(ready) * SMALL > 8 * 1024 else set())
    if early:
        assert plan.buckets[-1 - len(plan.dense)] is plan.sparse[-1]


def test_what_a_hook_makes_of_a_gradient_before_its_bucket_is_complete_is_what_is_exchanged():
    def work(transport: ThreadTransport) -> list[torch.Tensor]:
        torch.manual_seed(0)
        first, second = nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)
        model = nn.Sequential(first, second)

        def change(_: torch.Tensor) -> None:
            second.weight.grad.mul_(3.0)

        # The bucket holds both layers; the last layer's gradient is there first.
        first.weight.register_post_accumulate_grad_hook(change)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            laplace(density=1.0),
            exchange="allgather",
            transport=transport,
        )
        model(torch.ones(4, 100) * (1 + transport.rank)).sum().backward()
        own = second.weight.grad.clone()
        optimizer.synchronize()
        return [own, second.weight.grad.clone()]

    results = run_ranks(2, work, timeout=30)
    mean = sum(own for own, _ in results) / 2
    assert all(torch.allclose(got, mean) for _, got in results)

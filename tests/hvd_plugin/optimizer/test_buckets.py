"""Which gradients travel together."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from torch import nn
from training import laplace, loss_of

import gradsieve_hvd
from gradsieve_hvd.optimizer.buckets import cut_into_buckets
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

SIZES = st.dictionaries(st.text(max_size=3), st.integers(1, 1000))


@given(sizes=SIZES, limit=st.integers(1, 3000))
def test_every_tensor_is_in_one_bucket_in_the_given_order(sizes, limit):
    buckets = cut_into_buckets(sizes, limit)
    assert [name for bucket in buckets for name in bucket] == list(sizes)


@given(sizes=SIZES, limit=st.integers(1, 3000))
def test_all_buckets_but_the_last_reach_the_limit_and_none_could_end_earlier(sizes, limit):
    buckets = cut_into_buckets(sizes, limit)
    for bucket in buckets[:-1]:
        assert sum(sizes[name] for name in bucket) >= limit
    for bucket in buckets:
        assert sum(sizes[name] for name in bucket[:-1]) < limit


@given(
    sizes=SIZES,
    limit=st.integers(1, 3000),
    group_of=st.dictionaries(st.text(max_size=3), st.integers(0, 3)),
)
def test_names_of_a_group_are_in_one_bucket_and_all_others_keep_their_order(sizes, limit, group_of):
    buckets = cut_into_buckets(sizes, limit, group_of)
    names = [name for bucket in buckets for name in bucket]
    assert sorted(names) == sorted(sizes)
    for group in {group_of[name] for name in names if name in group_of}:
        members = [name for name in sizes if group_of.get(name) == group]
        assert [bucket for bucket in buckets if set(bucket) & set(members)] == [
            bucket for bucket in buckets if set(members) <= set(bucket)
        ]
        at = names.index(members[0])
        assert names[at : at + len(members)] == members
    alone = [name for name in names if name not in group_of]
    assert alone == [name for name in sizes if name not in group_of]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(lambda _: 1, [["4.weight", "2.weight", "0.weight"]], id="one group"),
        pytest.param(lambda _: 2, [["4.weight"], ["2.weight", "0.weight"]], id="two groups"),
        pytest.param(
            lambda model: [[model[0].weight, model[4].weight]],
            [["2.weight"], ["4.weight", "0.weight"]],
            id="a list of parameters",
        ),
    ],
)
def test_groups_leave_together(groups, expected, monkeypatch):
    monkeypatch.setattr("gradsieve_hvd.optimizer.plan.BUCKET_ELEMENTS", 1)
    torch.manual_seed(0)
    layers = [nn.Linear(20, 20, bias=False) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    def work(transport: ThreadTransport) -> list[list[str]]:
        own = copy.deepcopy(model)
        optimizer = gradsieve_hvd.DistributedOptimizer(
            torch.optim.SGD(own.parameters(), lr=0.1),
            own.named_parameters(),
            laplace(),
            groups=groups(own),
            transport=transport,
        )
        for _ in range(2):
            optimizer.zero_grad()
            own(torch.randn(4, 20)).square().sum().backward()
            optimizer.step()
        return [list(bucket.sizes) for bucket in optimizer.synchronizer._plan.sparse]

    assert run_ranks(2, work, 20.0) == [expected, expected]


def test_buckets_are_cut_in_the_order_in_which_gradients_were_ready_on_rank_0():
    def names(rank: ThreadRank) -> list[str]:
        loss_of(rank.model, 0, rank.rank).backward()
        rank.optimizer.step()
        plan = rank.optimizer.synchronizer._plan
        return [name for bucket in plan.sparse for name in bucket.sizes]

    for each in on_thread_ranks(2, names):
        assert each == ["2.weight", "0.weight"]

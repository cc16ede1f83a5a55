"""Which gradients travel together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from thread_ranks import ThreadRank, on_thread_ranks
from training import loss_of

from gradsieve_hvd.optimizer.buckets import cut_into_buckets

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


def test_buckets_are_cut_in_the_order_in_which_gradients_were_ready_on_rank_0():
    def names(rank: ThreadRank) -> list[str]:
        loss_of(rank.model, 0, rank.rank).backward()
        rank.optimizer.step()
        plan = rank.optimizer.synchronizer._plan
        return [name for bucket in plan.sparse for name in bucket.sizes]

    for each in on_thread_ranks(2, names):
        assert each == ["2.weight", "0.weight"]

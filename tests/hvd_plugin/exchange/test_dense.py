"""Flat buckets: every rank gets the same sum, and what two bytes cannot say goes back to who said it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.codec import sent_values
from gradsieve.errors import PayloadError
from gradsieve_hvd.exchange import DenseExchange, Reduced, dense
from gradsieve_hvd.exchange.messages_sent import dense_bytes
from gradsieve_hvd.transport.threads import ThreadTransport, run_ranks

FORMATS = ["float32", "float16", "bfloat16"]
formats = pytest.mark.parametrize("value_dtype", FORMATS)


BLOCKS, AT_ONCE = "always by blocks", "few values at once"


@pytest.fixture(autouse=True, scope="module", params=[BLOCKS, AT_ONCE])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Few values of two bytes every rank sends to all others; what is not said of one way holds for both."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == BLOCKS:
            patch.setattr(dense, "_AT_ONCE_HALVES", -1)
        yield request.param


def exchanged(given: list[torch.Tensor], value_dtype: str, refusing: int | None = None) -> list[Reduced]:
    def work(transport: ThreadTransport) -> Reduced:
        mine = given[transport.rank]
        return DenseExchange(value_dtype).exchange(mine, transport, refuse=transport.rank == refusing)

    return run_ranks(len(given), work, timeout=20)


def random(ranks: int, elements: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(elements, generator=generator) for _ in range(ranks)]


def assert_same_bits(results: list[Reduced]) -> None:
    for result in results:
        assert torch.equal(result.total.view(torch.int32), results[0].total.view(torch.int32))


@formats
@given(data=st.data(), ranks=st.integers(1, 5), elements=st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_sum_of_whole_numbers_is_exact(
    value_dtype: str, data: st.DataObject, ranks: int, elements: int
) -> None:
    # Sums of up to five such numbers are exact in bf16, too.
    numbers = st.lists(st.integers(-50, 50), min_size=elements, max_size=elements)
    given = [torch.tensor(data.draw(numbers), dtype=torch.float32) for _ in range(ranks)]
    results = exchanged(given, value_dtype)
    assert_same_bits(results)
    assert torch.equal(results[0].total, torch.stack(given).sum(0))
    assert not any(result.refused for result in results)
    assert all(result.rejected is None or not result.rejected.any() for result in results)


@formats
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_sum_and_what_was_rejected_are_what_was_given(value_dtype: str, ranks: int) -> None:
    given = random(ranks, 1003)
    results = exchanged(given, value_dtype)
    assert_same_bits(results)
    conserved = results[0].total.double()
    for result in results:
        conserved += 0 if result.rejected is None else result.rejected.double()
    # Eight sums in fp32, of numbers below 10.
    assert float((conserved - torch.stack(given).double().sum(0)).abs().max()) < 1e-5


def test_fp32_blocks_are_added_up_in_the_order_in_which_they_travel() -> None:
    given = random(3, 300)
    total = exchanged(given, "float32")[0].total
    for block in range(3):
        start, stop = 100 * block, 100 * (block + 1)
        wanted = given[block][start:stop]
        for away in (1, 2):
            wanted = wanted + given[(block + away) % 3][start:stop]
        assert torch.equal(total[start:stop], wanted)


@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16"])
def test_two_bytes_are_rounded_when_sent_and_added_up_in_the_order_of_ranks(
    value_dtype: str, way: str
) -> None:
    given = random(4, 300)
    results = exchanged(given, value_dtype)
    added = torch.zeros(300)
    for each in given:
        added += sent_values(each, value_dtype)
    wanted = added if way == AT_ONCE else sent_values(added, value_dtype)  # a block's sum is sent once more
    assert_same_bits(results)
    assert torch.equal(results[0].total, wanted)
    for rank, (each, result) in enumerate(zip(given, results, strict=True)):
        rejected = each - sent_values(each, value_dtype)
        rejected[75 * rank : 75 * (rank + 1)] += (added - wanted)[75 * rank : 75 * (rank + 1)]
        assert torch.equal(result.rejected, rejected)


def test_what_is_too_large_for_two_bytes_is_rejected_and_not_infinite(way: str) -> None:
    largest = torch.finfo(torch.float16).max
    given = [torch.full((4,), 2 * largest), torch.full((4,), largest / 2)]
    results = exchanged(given, "float16")
    # By blocks sums are rounded, too; at once only what each rank sends.
    assert torch.equal(results[0].total, torch.full((4,), largest * (1.5 if way == AT_ONCE else 1.0)))
    rejected = torch.stack([result.rejected for result in results]).sum(0)
    assert torch.allclose(rejected, sum(given) - results[0].total)


def test_a_sum_beyond_fp32_is_refused_although_every_part_has_two_bytes() -> None:
    assert all(result.refused for result in exchanged([torch.full((9,), 3e38)] * 5, "bfloat16"))


@formats
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_if_one_rank_has_no_number_all_ranks_refuse(value_dtype: str, value: float) -> None:
    given = random(4, 50)
    given[2][17] = value
    for result in exchanged(given, value_dtype):
        assert result.refused
        assert not result.total.any()
        assert result.rejected is None


@formats
def test_if_one_rank_is_asked_to_refuse_all_ranks_do(value_dtype: str) -> None:
    assert all(result.refused for result in exchanged(random(3, 50), value_dtype, refusing=1))


def test_a_sum_that_becomes_infinite_is_refused_on_all_ranks() -> None:
    assert all(result.refused for result in exchanged([torch.full((9,), 3e38)] * 2, "float32"))


@formats
def test_buckets_of_different_sizes_are_an_error(value_dtype: str) -> None:
    with pytest.raises(PayloadError, match="field 'elements'"):
        exchanged([torch.ones(40), torch.ones(44)], value_dtype)


@formats
def test_what_was_given_is_not_changed(value_dtype: str) -> None:
    given = random(3, 50)
    before = [each.clone() for each in given]
    exchanged(given, value_dtype)
    assert all(torch.equal(*pair) for pair in zip(given, before, strict=True))


@pytest.mark.parametrize(("value_dtype", "share"), [("float32", 1), ("float16", 2), ("bfloat16", 2)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_all_reduce_could_send_less(value_dtype: str, share: int, ranks: int) -> None:
    def work(transport: ThreadTransport) -> int:
        DenseExchange(value_dtype).exchange(torch.ones(80_000), transport)
        return transport.sent_bytes

    # Headers and checksums of 2 (P - 1) messages.
    for sent in run_ranks(ranks, work):
        assert 0 <= sent - dense_bytes(80_000, ranks) / share <= 2 * (ranks - 1) * 30

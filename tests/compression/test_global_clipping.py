"""Clipping by the norm of the whole mean gradient, agreed in the last step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve import ConfigurationError, PayloadError
from gradsieve.global_clipping import GlobalClipping

SIZES = {"large": 20_000, "small": 300}
ALL = sum(SIZES.values())


def gradients(seed, length=1.0, common=0.5):
    """A rank's gradient with a norm of about ``length``, some of which all ranks have in common."""
    made = {}
    for number, (name, size) in enumerate(SIZES.items()):
        shared = torch.randn(size, generator=torch.Generator().manual_seed(number))
        own = torch.randn(size, generator=torch.Generator().manual_seed(1000 + 10 * seed + number))
        made[name] = (common * shared + math.sqrt(1 - common**2) * own) * (length / math.sqrt(ALL))
    return made


def whole(parts):
    return torch.cat([part.double() for part in parts.values()])


class Ranks:
    """Several ranks that clip together."""

    def __init__(self, bound, ranks, averages=True):
        self.parts = [GlobalClipping(bound, ranks, averages=averages) for _ in range(ranks)]
        self.averages = averages

    def step(self, given, unscale=1.0):
        """Return what every rank accumulates."""
        clipped = [
            {name: g * unscale * part.factor(g, name, g.numel() / ALL, unscale) for name, g in own.items()}
            for part, own in zip(self.parts, given, strict=True)
        ]
        messages = [part.close_step() for part in self.parts]
        for part in self.parts:
            part.agree(messages)
        return clipped

    def reduced(self, parts):
        total = torch.stack([whole(part) for part in parts]).sum(0)
        return total / len(parts) if self.averages else total


def norms(ranks, given, steps=3):
    """Norms of what is reduced, step by step, unclipped and clipped."""
    found = []
    for _ in range(steps):
        clipped = ranks.step(given)
        found.append((float(ranks.reduced(given).norm()), float(ranks.reduced(clipped).norm())))
    return found


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(2, 5),
    averages=st.booleans(),
    common=st.sampled_from([0.0, 0.5, 1.0]),
    ratio=st.floats(0.01, 50),
)
def test_from_the_second_step_on_the_reduced_gradient_is_clipped_as_a_whole(ranks, averages, common, ratio):
    given_ = [gradients(seed, common=common) for seed in range(ranks)]
    reduced = float(Ranks(1.0, ranks, averages).reduced(given_).norm())
    _, (_, second), _ = norms(Ranks(reduced / ratio, ranks, averages), given_)
    wanted = min(reduced, reduced / ratio)
    # The norm is known from 127 sums: its standard deviation is 6 %.
    assert wanted * 0.75 <= second <= min(wanted * 1.3, reduced * (1 + 1e-6))


def test_all_ranks_and_all_tensors_get_the_same_factor_so_that_the_direction_stays():
    given_ = [gradients(0, length=30.0), gradients(1), gradients(2), gradients(3)]
    ranks = Ranks(0.3, 4)
    ranks.step(given_)
    clipped = ranks.step(given_)
    factors = {
        float(c[name].norm() / g[name].norm()) for g, c in zip(given_, clipped, strict=True) for name in g
    }
    assert max(factors) == pytest.approx(min(factors), rel=1e-5)
    cosine = torch.cosine_similarity(ranks.reduced(given_), ranks.reduced(clipped), dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=1e-6)


def test_short_gradients_pass_bit_for_bit():
    given_ = [gradients(seed) for seed in range(2)]
    ranks = Ranks(100.0, 2)
    for _ in range(3):
        for own, clipped in zip(given_, ranks.step(given_), strict=True):
            assert all(torch.equal(own[name], clipped[name]) for name in own)


@pytest.mark.parametrize("averages", [True, False])
def test_in_the_first_step_the_bound_holds_without_any_agreement(averages):
    given_ = [gradients(seed, length=10.0**seed) for seed in range(4)]
    ranks = Ranks(0.5, 4, averages)
    assert float(ranks.reduced(ranks.step(given_)).norm()) <= 0.5 * (1 + 1e-6)


def test_an_explosion_is_cut_in_its_own_step_and_costs_the_next_one_half_at_most():
    usual = [gradients(seed) for seed in range(2)]
    exploded = [{name: g * (1e6 if seed == 1 else 1) for name, g in usual[seed].items()} for seed in range(2)]
    ranks = Ranks(1.0, 2)
    ranks.step(usual)
    ranks.step(usual)
    assert float(ranks.reduced(ranks.step(exploded)).norm()) < 10
    after = [float(whole(ranks.step(usual)[0]).norm() / whole(usual[0]).norm()) for _ in range(3)]
    assert after[0] >= 0.5 * (1 - 1e-6)
    assert after[1] == after[2] == pytest.approx(1.0)


def test_steps_that_are_not_finite_change_nothing():
    given_ = [gradients(seed) for seed in range(2)]
    ranks = Ranks(0.1, 2)
    ranks.step(given_)
    before = ranks.parts[0].state_dict()
    bad = gradients(1)
    bad["small"][3] = torch.inf
    passed = ranks.step([gradients(0, length=5.0), bad])
    assert ranks.parts[0].state_dict() == before
    assert not torch.isfinite(passed[1]["small"]).all(), "it is handed on, to be refused"


def test_a_step_that_is_done_again_gets_the_same_factors():
    given_ = gradients(0)
    ranks = Ranks(0.1, 2)
    ranks.step([given_, gradients(1)])
    part = ranks.parts[0]
    first = [part.factor(g, name, 0.5) for name, g in given_.items()]
    message = part.close_step()
    for name, g in given_.items():
        part.factor(g, name, 0.5)
    part.discard_step()
    assert [part.factor(g, name, 0.5) for name, g in given_.items()] == first
    assert part.close_step() == message


def test_a_loss_scale_makes_no_difference():
    given_ = [gradients(seed) for seed in range(2)]
    scaled = [{name: g * 2.0**16 for name, g in own.items()} for own in given_]
    plain, amp = Ranks(0.1, 2), Ranks(0.1, 2)
    for _ in range(3):
        for ours, theirs in zip(plain.step(given_), amp.step(scaled, unscale=2.0**-16), strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_and_layouts_have_the_same_norm(dtype):
    gradient = torch.randn(16, 8, 5, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = []
    for each in (gradient.float(), gradient, gradient.to(memory_format=torch.channels_last)):
        part = GlobalClipping(1.0, 1, averages=True)
        part.factor(each, "x", 1.0)
        part.agree([part.close_step()])
        found.append(part.state_dict()["reduced_norm"])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("size", [1, 126, 127, 128, 127 * (1 << 14), 127 * (1 << 14) + 5, 5_000_000])
def test_the_norm_of_any_size_is_found(size):
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(size))
    part = GlobalClipping(1.0, 1, averages=True)
    part.factor(gradient, "x", 1.0)
    part.agree([part.close_step()])
    assert part.state_dict()["reduced_norm"] == pytest.approx(float(gradient.norm()), rel=0.3)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e18, 1e30])
def test_squares_outside_of_fp32_do_no_harm(size):
    part = GlobalClipping(1.0, 1, averages=True)
    factor = part.factor(torch.full((1000,), size), "x", 1.0)
    assert factor == pytest.approx(min(1.0, 1 / (size * math.sqrt(1000))))


def test_gradients_that_cancel_between_ranks_are_not_taken_for_long_ones():
    """Their mean is short however long they are: nothing is to be clipped, as nothing would be afterwards."""
    one = gradients(0, length=50.0)
    other = {name: -g + 0.001 * torch.ones_like(g) for name, g in one.items()}
    ranks = Ranks(1.0, 2)
    (_, _), (unclipped, clipped), _ = norms(ranks, [one, other])
    assert unclipped < 1.0
    assert clipped < 1.0


def test_the_state_is_what_goes_on():
    given_ = [gradients(seed) for seed in range(2)]
    ranks, resumed = Ranks(0.1, 2), Ranks(0.1, 2)
    ranks.step(given_)
    for part in resumed.parts:
        part.load_state_dict(ranks.parts[0].state_dict())
    for ours, theirs in zip(ranks.step(given_), resumed.step(given_), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"reduced_norm": 1.0},
        {"reduced_norm": -1.0, "spread": 1.0},
        {"reduced_norm": math.nan, "spread": 1.0},
        {"reduced_norm": "1", "spread": 1.0},
        {"reduced_norm": 1.0, "spread": None},
        {"reduced_norm": 1.0, "spread": 1.0, "more": 1},
    ],
)
def test_states_that_are_none_change_nothing(state):
    part = GlobalClipping(1.0, 1, averages=True)
    part.load_state_dict({"reduced_norm": 3.0, "spread": 1.0})
    with pytest.raises(ConfigurationError):
        part.load_state_dict(state)
    assert part.state_dict() == {"reduced_norm": 3.0, "spread": 1.0}


def test_a_foreign_message_is_refused():
    part = GlobalClipping(1.0, 2, averages=True)
    with pytest.raises(PayloadError, match="wrong length"):
        part.agree([part.close_step(), b"short"])


def test_a_rank_that_is_new_agrees_with_the_others_after_one_step():
    old, new = GlobalClipping(0.1, 2, averages=True), GlobalClipping(0.1, 2, averages=True)
    old.load_state_dict({"reduced_norm": 500.0, "spread": 1.5})
    for part, own in ((old, gradients(0)), (new, gradients(1))):
        for name, g in own.items():
            part.factor(g, name, 0.5)
    messages = [old.close_step(), new.close_step()]
    old.agree(messages)
    new.agree(messages)
    assert old.state_dict() == new.state_dict()

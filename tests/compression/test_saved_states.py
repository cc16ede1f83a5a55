"""Every field of a saved state is checked; a state that is refused changes nothing."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sole_tensor import SoleTensor

from gradsieve import Compression, ConfigurationError, MomentumCorrection

ELEMENTS = 64
CONFIGS = {
    "laplace": Compression.laplace(0.1),
    "momentum": Compression.topk(0.1, momentum=MomentumCorrection()),
    "bfloat16": Compression.topk(0.1, residual_dtype="bfloat16"),
    "layered": Compression.layered(0.1, adapt_steps=2),
    "importance": Compression.importance(0.1, network_power=0),
    "none": Compression.topk(0.1, error_feedback=False),
}
JUNK = [None, "0.1", -1.0, -1, math.nan, math.inf, True, 2.5, [], {}, [-1.0], torch.ones(2), b"x"]


def trained(name):
    made = SoleTensor(CONFIGS[name], ELEMENTS)
    for step in range(3):
        made.compress(torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(step)), step=step)
        made.commit()
    return made


def paths(state, before=()):
    for key, value in state.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    return type(one) is type(other) and (one == other)


def holder(state, path):
    for key in path[:-1]:
        state = state[key]
    return state


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_a_field_that_is_junk_is_refused_and_nothing_changes(name, data):
    made = trained(name)
    before = made.state_dict()
    bad = copy.deepcopy(before)
    path = data.draw(st.sampled_from(sorted(paths(bad))))
    junk = data.draw(st.sampled_from(JUNK))
    holder(bad, path)[path[-1]] = junk
    try:
        made.load_state_dict(bad)
    except ConfigurationError:
        assert same(made.state_dict(), before)
    else:  # an empty list of losses, None for "not known yet": what is taken can be trained with and saved
        made.compress(torch.ones(ELEMENTS), step=3)
        made.commit()
        made.load_state_dict(made.state_dict())


@pytest.mark.parametrize("junk", ["0.1", math.nan, math.inf, -1.0, True, [1.0], torch.ones(1)])
def test_a_threshold_that_is_none_of_the_kind(junk):
    made = trained("laplace")
    state = made.state_dict()
    with pytest.raises(ConfigurationError, match="'threshold'"):
        made.load_state_dict({**state, "threshold": junk})
    assert made.threshold == state["threshold"]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_missing_and_foreign_fields_are_refused_and_nothing_changes(name, data):
    made = trained(name)
    before = made.state_dict()
    bad = copy.deepcopy(before)
    path = data.draw(st.sampled_from(sorted(paths(bad))))
    if data.draw(st.booleans()):
        del holder(bad, path)[path[-1]]
    else:
        holder(bad, path)["foreign"] = 1
    if path[-1] == "anchor_turn" and "foreign" not in holder(bad, path):
        made.load_state_dict(bad)  # states of version 0.1.0 had none
        return
    with pytest.raises(ConfigurationError):
        made.load_state_dict(bad)
    assert same(made.state_dict(), before)


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.zeros(ELEMENTS).to_sparse(), id="sparse"),
        pytest.param(torch.empty(ELEMENTS, device="meta"), id="meta"),
        pytest.param(torch.zeros(ELEMENTS, dtype=torch.float64), id="float64"),
        pytest.param(torch.zeros(8, 8), id="another shape"),
        pytest.param(torch.full((ELEMENTS,), math.nan), id="nan"),
    ],
)
def test_residuals_that_do_not_fit(tensor):
    made = trained("laplace")
    before = made.state_dict()
    with pytest.raises(ConfigurationError, match="'residual'"):
        made.load_state_dict({**before, "feedback": {"residual": tensor}})
    assert same(made.state_dict(), before)


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_states_that_are_no_dictionaries(state):
    with pytest.raises(ConfigurationError, match="expected a dictionary"):
        trained("laplace").load_state_dict(state)


def test_a_network_measured_over_a_longer_window_is_taken_over():
    saved = SoleTensor(Compression.importance(0.1, period=20), ELEMENTS)
    state = saved.state_dict()
    state["policy"]["model"]["first_seconds_per_byte"] = [1e-9] * 15
    shorter = SoleTensor(Compression.importance(0.1, period=10), ELEMENTS)
    shorter.load_state_dict(state)
    shorter._policy.policy.observe_exchange(1.0, 10**9)
    shorter._policy.policy.commit()
    assert shorter.state_dict()["policy"]["model"]["reference_seconds_per_byte"] == pytest.approx(1e-9)

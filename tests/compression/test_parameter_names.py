"""Names match with and without what torch.compile and wrappers of models put into them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradsieve import Compression, ConfigurationError
from gradsieve.parameter_names import matching, unwrapped

cores = st.lists(
    st.lists(st.sampled_from(["encoder", "0", "fc", "weight"]), min_size=1, max_size=3).map(".".join),
    unique=True,
    max_size=6,
)
prefixes = st.sampled_from(["", "_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])


@given(names=cores, one=prefixes, other=prefixes)
def test_either_side_may_be_wrapped(names, one, other):
    found = matching([one + name for name in names], [other + name for name in names])
    assert found == {one + name: other + name for name in names}


def test_the_names_are_those_of_the_real_wrappers():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain = [name for name, _ in model.named_parameters()]
    wrapped = torch.compile(nn.DataParallel(model))
    inside = nn.Sequential(torch.compile(model[0]), model[1])
    for other in (wrapped, inside):
        names = [name for name, _ in other.named_parameters()]
        assert names != plain
        assert [unwrapped(name) for name in names] == plain
        assert matching(plain, names) == dict(zip(plain, names, strict=True))


def test_an_equal_name_comes_first_and_strangers_are_left_out():
    assert matching(["module.a", "a"], ["a", "module.a"]) == {"a": "a", "module.a": "module.a"}
    assert matching(["module.a", "b"], ["a", "c"]) == {"module.a": "a"}
    assert matching(["module.a", "_orig_mod.a"], ["b"]) == {}


@pytest.mark.parametrize("saved", [["module.a", "_orig_mod.a"], ["_orig_mod.a"]])
def test_what_could_be_two_is_refused(saved):
    present = ["a"] if len(saved) == 2 else ["module.a", "module.module.a"]
    with pytest.raises(ConfigurationError, match="are one name, 'a'"):
        matching(saved, present)


def test_patterns_of_layers_match_compiled_models_too():
    config = Compression.layered(layer_min_elements={"head.*": 0, "module.own.weight": 0})
    assert config.compresses("head.weight", 1)
    assert config.compresses("_orig_mod.head.weight", 1)
    assert config.compresses("module.own.weight", 1)
    assert not config.compresses("_orig_mod.body.head", 1)

"""The selection rules: each turns a density into counts and asks a kernel."""

from gradsieve.selectors.exact import TopKSelector
from gradsieve.selectors.group import GroupTopKSelector
from gradsieve.selectors.laplace import LaplaceSelector
from gradsieve.selectors.layered import LayeredSelector
from gradsieve.selectors.sampled import SampledSelector

__all__ = ["GroupTopKSelector", "LaplaceSelector", "LayeredSelector", "SampledSelector", "TopKSelector"]

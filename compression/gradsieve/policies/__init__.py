"""Policies: how much of each layer is sent."""

from gradsieve.policies.base import Decision, LayerPolicy, Outcome, Policy
from gradsieve.policies.bounded import BoundedPolicy, DensityPlan, Steering
from gradsieve.policies.fixed import FixedPolicy
from gradsieve.policies.importance import ImportancePolicy
from gradsieve.policies.layered import LayeredPolicy
from gradsieve.policies.warmup import WarmupPolicy

__all__ = [
    "BoundedPolicy",
    "Decision",
    "DensityPlan",
    "FixedPolicy",
    "ImportancePolicy",
    "LayerPolicy",
    "LayeredPolicy",
    "Outcome",
    "Policy",
    "Steering",
    "WarmupPolicy",
]

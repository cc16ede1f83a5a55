"""The claims that can be reproduced, by the letters that the documentation gives the methods."""

from __future__ import annotations

from .finding import Claim
from .layered import LayeredAdaptive
from .selection import LaplaceThreshold

CLAIMS: dict[str, Claim] = {"A": LayeredAdaptive(), "E": LaplaceThreshold()}

"""Kubernetes quantities (``1500m``, ``2Gi``, ``1e3``), exactly.

The grammar and the roundings are those of k8s.io/apimachinery's ``resource.Quantity``: nothing finer than
nano exists and the scheduler counts cpu in thousandths and everything else in whole units, both rounded up.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from gradsieve_operator.errors import SpecError

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>\d+\.?\d*|\.\d+)(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?",
    re.ASCII,
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{suffix: Fraction(10 ** (3 * power)) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}
_NANO = 10**9
_LARGEST = 2**63 - 1
_CPU = "cpu"


@lru_cache(maxsize=4096, typed=True)  # True is no 1
def parse_quantity(text: str | int, field: str = "quantity") -> Fraction:
    """Return the exact value of a quantity.

    1. Split into sign, decimal digits and a suffix: binary, decimal or an exponent.
    2. Multiply; round away from zero to nano; cap the magnitude at 2^63 - 1.

    Raises:
        SpecError: ``text`` is no quantity.
    """
    match = _QUANTITY.fullmatch(str(text)) if not isinstance(text, bool) else None
    if match is None:
        raise SpecError(field, f"is {text!r}; it must be a quantity such as 2, 1500m or 16Gi")
    nanos = Fraction(match["digits"]) * _factor(match["suffix"] or "") * _NANO
    value = min(Fraction(math.ceil(nanos), _NANO), Fraction(_LARGEST))
    return -value if match["sign"] == "-" else value


def units(resource: str, quantity: str | int, field: str = "quantity") -> int:
    """Return what the scheduler counts: thousandths of cpu, whole units of everything else, rounded up.

    Raises:
        SpecError: ``quantity`` is none, or negative.
    """
    value = parse_quantity(quantity, field)
    if value < 0:
        raise SpecError(field, f"is {quantity!r}; it must not be negative")
    return math.ceil(value * 1000) if resource == _CPU else math.ceil(value)


def _factor(suffix: str) -> Fraction:
    if not suffix:
        return Fraction(1)
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return Fraction(10) ** int(suffix[1:])

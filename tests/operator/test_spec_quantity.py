"""Kubernetes quantities are read exactly and counted as the scheduler counts them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec import parse_quantity, units

EXACT = {
    "0": 0,
    "1500m": Fraction(3, 2),
    "2": 2,
    ".5": Fraction(1, 2),
    "5.": 5,
    "+1k": 1000,
    "-3": -3,
    "1Ki": 1024,
    "1.5Gi": 3 * 2**29,
    "1E": 10**18,
    "1e3": 1000,
    "12E-1": Fraction(6, 5),
    "100n": Fraction(1, 10**7),
    "0.1n": Fraction(1, 10**9),
    "9Ei": 2**63 - 1,
}


@pytest.mark.parametrize(("text", "value"), EXACT.items())
def test_a_quantity_has_one_exact_value(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1KI", "1kk", "1e", "0x10", "1_000", "١", "1e3m", True])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(SpecError, match="must be a quantity"):
        parse_quantity(text)


def test_numbers_are_taken_as_the_api_server_hands_them_out():
    assert parse_quantity(4) == 4


@given(st.integers(0, 10**12), st.sampled_from(["n", "u", "m", "", "k", "Ki", "Mi"]))
def test_a_suffix_is_a_factor(number, suffix):
    assert parse_quantity(f"{number}{suffix}") == min(number * parse_quantity(f"1{suffix}"), 2**63 - 1)


def test_cpu_is_counted_in_thousandths_and_the_rest_in_units_rounded_up():
    assert units("cpu", "0.5") == 500
    assert units("cpu", "100u") == 1
    assert units("memory", "1500m") == 2
    assert units("nvidia.com/gpu", 2) == 2


def test_a_negative_amount_is_refused_by_name():
    with pytest.raises(SpecError, match=r"spec\.cpu: is '-1'"):
        units("cpu", "-1", "spec.cpu")

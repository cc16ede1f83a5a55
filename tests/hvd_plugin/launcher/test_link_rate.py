"""How a link's rate is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher import format_rate, parse_rate
from gradsieve_hvd.launcher.link import burst


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 10**8),
        ("1gbit", 10**9),
        ("1.5Gbit", 1_500_000_000),
        ("25mbit/s", 25 * 10**6),
        ("64kbit", 64_000),
        ("100Mb", 10**8),
        ("100mb/s", 10**8),
        ("100M", 10**8),
        ("100mbps", 10**8),
        ("100 Mbit/s", 10**8),
        ("10Mbits/sec", 10**7),
        ("1G", 10**9),
        ("2.5Gbps", 2_500_000_000),
        ("256k", 256_000),
        ("512Kbit", 512_000),
        ("64000bit", 64_000),
        ("64000bps", 64_000),
    ],
)
def test_a_rate_is_in_bits_per_second(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["none", "unshaped"])
def test_no_shaping_has_a_name(text):
    assert parse_rate(text) is None


@pytest.mark.parametrize("text", ["", "100", "fast", "-1mbit", "100x", "M", "100/s", "1kbit", "0gbit"])
def test_what_is_no_rate_is_refused_with_an_example(text):
    with pytest.raises(ConfigurationError, match="mbit|64kbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["100MB/s", "100MB", "100MBps", "100mbyte", "100 Mbytes/s"])
def test_bytes_are_refused_with_both_readings(text):
    with pytest.raises(ConfigurationError, match=r"counts bytes.*write 800mbit .* or 100mbit"):
        parse_rate(text)


@given(st.integers(64_000, 10**12))
def test_a_rate_is_read_as_it_was_written(rate):
    assert parse_rate(format_rate(rate)) == rate


@given(st.integers(64_000, 10**10))
def test_a_burst_is_short_and_holds_a_frame(rate):
    assert burst(rate) >= 1514
    assert burst(rate) == 16 * 1024 or burst(rate) <= rate / 8 * 0.0021

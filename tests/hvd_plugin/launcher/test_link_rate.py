"""How a link's rate is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher import Link, format_rate, parse_link, parse_rate
from gradsieve_hvd.launcher.network import burst


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


@pytest.mark.parametrize("text", ["40gbit", "none,2:100gbit"])
def test_a_rate_that_linux_does_not_shape_to_is_refused_for_links_and_may_be_asked_about(text):
    with pytest.raises(ConfigurationError, match=r"above 34\.4gbit.*write none"):
        parse_link(text)
    assert parse_rate("40gbit") == 40 * 10**9
    assert parse_link("34gbit") == Link(34 * 10**9)


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


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("100mbit", Link(10**8)),
        ("2:20mbit", Link(None, ((2, 20_000_000),))),
        ("1gbit, 3:none,1:20mbit", Link(10**9, ((1, 20_000_000), (3, None)))),
    ],
)
def test_ranks_may_have_links_of_their_own(text, link):
    assert parse_link(text) == link
    assert parse_link(str(link)) == link
    assert [link.rate_of(0), link.rate_of(link.others[-1][0] if link.others else 1)] == [
        link.rate,
        link.others[-1][1] if link.others else link.rate,
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("100mbit,10mbit", "2 rates for all ranks: write 100mbit,2:20mbit"),
        ("1:10mbit,1:20mbit", "two rates for rank 1"),
        ("-1:10mbit", "'-1' is no rank"),
        ("a:10mbit", "'a' is no rank"),
        ("2:fast", "'fast' is not understood"),
        ("2:", "'' is not understood"),
        ("", "'' is not understood"),
    ],
)
def test_a_link_that_cannot_be_is_refused_with_an_example(text, why):
    with pytest.raises(ConfigurationError, match=why):
        parse_link(text)

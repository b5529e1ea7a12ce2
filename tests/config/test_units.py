"""Durations, sizes, rates and addresses: what is written is what is read, and what is not one is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("10s", 10), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), ("1us", 1e-6), ("0", 0), ("0s", 0)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "10 sec", "-1s", "s", "1m1h", "1s1s", "1h 30m", "1e3s", "36526d", "1M", "١s", "9" * 20 + "s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        units.parse_duration(text)


@given(st.integers(0, units.DURATION_NS_MAX))
@settings(max_examples=200)
def test_durations_round_trip_to_the_nanosecond(nanoseconds: int) -> None:
    parts = []
    rest = nanoseconds
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)):
        count, rest = divmod(rest, size)
        parts.append(f"{count}{unit}")
    assert units.parse_duration_ns("".join(parts)) == nanoseconds


@given(st.integers(0, 10**9))
def test_a_formatted_duration_reads_back_the_same(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64KiB", 65536),
        ("16GiB", 16 << 30),
        ("10MB", 10**7),
        ("1500B", 1500),
        ("1.5MiB", 3 << 19),
        ("0", 0),
        ("1 KiB", 1024),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "64 kilobytes", "-1KiB", "1.3B", "1e3B", "KiB", "2000000TiB", "1kib"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        units.parse_size(text)


@given(st.integers(0, units.SIZE_BYTES_MAX // 2))
def test_a_formatted_size_reads_back_the_same(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_plain_refusal(text: str) -> None:
    for parse in (units.parse_duration, units.parse_size, units.parse_bind):
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize(
    ("bind", "reached"), [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("10.0.0.7:80", "10.0.0.7:80")]
)
def test_this_machine_reaches_a_listener_on_all_addresses_at_the_loopback(bind: str, reached: str) -> None:
    assert str(units.parse_bind(bind).from_here) == reached


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("127.0.0.1:1883", units.Address("127.0.0.1", 1883), True),
        ("[::1]:0", units.Address("::1", 0), True),
        ("localhost:80", units.Address("localhost", 80), True),
        ("0.0.0.0:1883", units.Address("0.0.0.0", 1883), False),
        ("[::]:1883", units.Address("::", 1883), False),
        ("edge.example.com:1883", units.Address("edge.example.com", 1883), False),
    ],
)
def test_addresses(text: str, address: units.Address, is_loopback: bool) -> None:
    assert units.parse_bind(text) == address
    assert units.parse_bind(text).is_loopback is is_loopback
    assert str(address) == text


@pytest.mark.parametrize("text", ["1883", ":1883", "::1:1883", "a:b", "127.0.0.1:65536", "127.0.0.1:", "a b:1", "a:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        units.parse_bind(text)


def test_sizes_for_people_have_three_digits() -> None:
    assert [units.approximate_size(size) for size in (512, 1536, 1_642_824_335)] == ["512 B", "1.5 KiB", "1.53 GiB"]
    assert units.approximate_size(1023 << 20) == "1023 MiB"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ftp://u:pass@host/x", '"ftp://...@host/x"'),
        ("https://token@host", '"https://...@host"'),
        ("https://u:p@ss@host/a@b", '"https://...@host/a@b"'),
        ("plant/@/x", '"plant/@/x"'),
    ],
)
def test_a_url_is_shown_without_the_credentials_in_it(text: str, shown: str) -> None:
    assert units.quoted(text) == shown

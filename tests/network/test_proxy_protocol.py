"""PROXY headers of both versions: what haproxy sends, and what must never pass."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.network.accepting import (
    PREFIX_BYTES,
    SIGNATURE,
    BadProxyHeader,
    ProxiedAddress,
    body_length,
    source,
    source_of_line,
)

INET = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + struct.pack("!HH", 50_312, 1883)
INET6 = bytes.fromhex("20010db8" + "00" * 11 + "07" + "20010db8" + "00" * 11 + "01") + struct.pack("!HH", 1, 8883)
TLV = b"\x20\x00\x05\x01\0\0\0\0"


def header(body: bytes = INET, command: int = 0x21, family: int = 0x11, length: int | None = None) -> bytes:
    """A header, which is right unless an argument makes it wrong."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if length is None else length) + body


def parse(data: bytes) -> ProxiedAddress | None:
    length = body_length(data[:PREFIX_BYTES])
    return source(data[:PREFIX_BYTES], data[PREFIX_BYTES : PREFIX_BYTES + length])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (header(), ProxiedAddress("192.0.2.7", 50_312)),
        (header(INET + TLV), ProxiedAddress("192.0.2.7", 50_312)),
        (header(INET6, family=0x21), ProxiedAddress("2001:db8::7", 1)),
        (header(b"", command=0x20, family=0), None),
        (header(INET, command=0x20), None),
    ],
)
def test_vectors(data: bytes, expected: ProxiedAddress | None) -> None:
    assert parse(data) == expected


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00<\x00\x02ab", "expected a PROXY header of version 1 or 2"),
        (header()[:15], "expected a PROXY header of version 1 or 2"),
        (header(command=0x11), "expected version 2 and the command"),
        (header(command=0x22), "expected version 2 and the command"),
        (header(family=0x12), "expected TCP over IPv4 or IPv6, got 0x12"),
        (header(family=0x31), "expected TCP over IPv4 or IPv6, got 0x31"),
        (header(b"", family=0), "expected TCP over IPv4 or IPv6, got 0x00"),
        (header(INET[:11]), "the addresses are cut short"),
        (header(INET6[:35], family=0x21), "the addresses are cut short"),
        (header(INET, length=13), "the header is cut short"),
        (header(length=65_535), "at most 2048 are read"),
    ],
)
def test_rejects(data: bytes, error: str) -> None:
    with pytest.raises(BadProxyHeader, match=error):
        parse(data)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 50312 1883\r\n", ProxiedAddress("192.0.2.7", 50_312)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 0 8883\r\n", ProxiedAddress("2001:db8::7", 0)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    ],
)
def test_lines_of_version_1(line: bytes, expected: ProxiedAddress | None) -> None:
    assert source_of_line(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 6 7\r\n",
        b"PROXY TCP4  192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 5 6\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY TCP6 fe80::1%eth0 fe80::2 5 6\r\n",
        b"PROXY TCP4 192.0.2.007 198.51.100.1 5 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 05 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -5 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 \xb26\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 6\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY \r\n",
    ],
)
def test_a_line_is_taken_as_the_specification_writes_it_alone(line: bytes) -> None:
    with pytest.raises(BadProxyHeader, match=r"PROXY|version 1"):
        source_of_line(line)


@given(st.binary(max_size=107))
def test_any_line_is_a_source_or_an_error(line: bytes) -> None:
    for data in (line, b"PROXY TCP4 " + line + b"\r\n"):
        with contextlib.suppress(BadProxyHeader):
            assert isinstance(source_of_line(data), ProxiedAddress | None)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_any_bytes_are_a_source_or_an_error(prefix: bytes, body: bytes) -> None:
    for data in (prefix + body, SIGNATURE + prefix + body):
        with contextlib.suppress(BadProxyHeader):
            assert isinstance(parse(data), ProxiedAddress | None)

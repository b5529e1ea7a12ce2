"""The PROXY protocol, which names the client of a proxy (haproxy.org, proxy-protocol.txt): version 1, a line of text
(section 2.1), and version 2, in binary (section 2.2). Pure: bytes to values."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

from weft.protocols.errors import CodecError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
START_BYTES = len(SIGNATURE)
"""Number of bytes that distinguish the versions; the shortest line of version 1 has 15."""
LINE_START = b"PROXY "
LINE_END = b"\r\n"
LINE_BYTES_MAX = 107
"""Longest line of version 1, its end included (section 2.1)."""
PREFIX_BYTES = 16
BODY_BYTES_MAX = 2048
"""Longest part after the first 16 bytes: addresses and extras. The specification considers 536 bytes enough, unix
addresses and TLS details included."""
_LOCAL, _PROXY = 0x20, 0x21
_INET, _INET6 = 0x10, 0x20
_STREAM = 0x01


class BadProxyHeader(CodecError):
    """Bytes that are not a PROXY header. The text states the problem."""


class ProxiedAddress(NamedTuple):
    """The client behind a proxy. ``host`` is empty when it is not an internet address."""

    host: str
    port: int


def source_of_line(line: bytes) -> ProxiedAddress | None:
    """Return the client's address from a line of version 1; None for UNKNOWN, the proxy's own connection.

    Raises:
        BadProxyHeader: the line differs from the specified form, even in a space or a leading zero.
    """
    parts = line.removesuffix(LINE_END).decode("ascii", "replace").split(" ")
    if parts[:2] == ["PROXY", "UNKNOWN"]:
        return None  # the rest of the line is ignored
    family = _FAMILIES.get(parts[1]) if len(parts) == 6 and parts[0] == "PROXY" else None
    if family is None or not line.endswith(LINE_END):
        raise BadProxyHeader(f"expected `PROXY TCP4 SOURCE DESTINATION PORT PORT` or TCP6, got {line[:60]!r}")
    try:
        host, _ = family(parts[2]), family(parts[3])
        port, _ = _port(parts[4]), _port(parts[5])
    except ValueError as error:
        raise BadProxyHeader(f"a line of version 1 with a bad address: {error}") from None
    return ProxiedAddress(str(host), port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or str(int(text)) != text or int(text) > 65_535:
        raise ValueError(f"{text!r} is no port")
    return int(text)


def _ipv6(text: str) -> ipaddress.IPv6Address:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return ipaddress.IPv6Address(text)


_FAMILIES: dict[str, Callable[[str], ipaddress.IPv4Address | ipaddress.IPv6Address]] = {
    "TCP4": ipaddress.IPv4Address,
    "TCP6": _ipv6,
}


def body_length(prefix: bytes) -> int:
    """Return the number of bytes after the first 16 of a header of version 2.

    Raises:
        BadProxyHeader: the bytes are not the beginning of a header, or it is longer than ``BODY_BYTES_MAX``.
    """
    if len(prefix) != PREFIX_BYTES or not prefix.startswith(SIGNATURE):
        raise BadProxyHeader("expected a PROXY header of version 1 or 2")
    if prefix[12] not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"expected version 2 and the command LOCAL or PROXY, got {prefix[12]:#04x}")
    (length,) = struct.unpack_from("!H", prefix, 14)
    if length > BODY_BYTES_MAX:
        raise BadProxyHeader(f"a header of {length} bytes, at most {BODY_BYTES_MAX} are read")
    return int(length)


def source(prefix: bytes, body: bytes) -> ProxiedAddress | None:
    """Return the client's address; None for the proxy's own connection (LOCAL), such as a health check.

    Raises:
        BadProxyHeader: the addresses are cut short, or of no stream connection over IPv4 or IPv6.
    """
    if len(body) != body_length(prefix):
        raise BadProxyHeader("the header is cut short")
    if prefix[12] == _LOCAL:
        return None
    family, transport = prefix[13] & 0xF0, prefix[13] & 0x0F
    if family not in (_INET, _INET6) or transport != _STREAM:
        raise BadProxyHeader(f"expected TCP over IPv4 or IPv6, got {prefix[13]:#04x}")
    size = 4 if family == _INET else 16
    if len(body) < 2 * size + 4:
        raise BadProxyHeader("the addresses are cut short")
    (port,) = struct.unpack_from("!H", body, 2 * size)
    return ProxiedAddress(str(ipaddress.ip_address(body[:size])), port)

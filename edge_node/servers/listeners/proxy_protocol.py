"""The PROXY protocol, version 2, which names the client of a proxy (haproxy.org, proxy-protocol.txt, section 2.2).

Pure: bytes to values. Version 1, which is text, is refused.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from weft.protocols.errors import CodecError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PREFIX_BYTES = 16
BODY_BYTES_MAX = 2048
"""Longest part after the first 16 bytes: addresses and extras. The specification calls 536 bytes enough, unix addresses
and TLS details included."""
_LOCAL, _PROXY = 0x20, 0x21
_INET, _INET6 = 0x10, 0x20
_STREAM = 0x01


class BadProxyHeader(CodecError):
    """Bytes that are no PROXY header of version 2. The sentence says what is wrong with them."""


class ProxiedAddress(NamedTuple):
    """The client behind a proxy. ``host`` is empty when it is no internet address."""

    host: str
    port: int


def body_length(prefix: bytes) -> int:
    """Return the number of bytes after the first 16.

    Raises:
        BadProxyHeader: those are not the beginning of a header, or it is longer than ``BODY_BYTES_MAX``.
    """
    if len(prefix) != PREFIX_BYTES or not prefix.startswith(SIGNATURE):
        raise BadProxyHeader("expected a PROXY header of version 2")
    if prefix[12] not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"expected version 2 and the command LOCAL or PROXY, got {prefix[12]:#04x}")
    (length,) = struct.unpack_from("!H", prefix, 14)
    if length > BODY_BYTES_MAX:
        raise BadProxyHeader(f"a header of {length} bytes, at most {BODY_BYTES_MAX} are read")
    return int(length)


def source(prefix: bytes, body: bytes) -> ProxiedAddress | None:
    """Return the client's address; None when the proxy speaks for itself (LOCAL), as in a health check.

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

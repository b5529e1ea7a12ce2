"""Revocation lists (RFC 5280 section 5), as far as OpenSSL leaves them to the node.

OpenSSL checks certificates at handshakes only. It reports neither when a list is out of date, nor which open
connections must end.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from weft.config.machine import why_unreadable
from weft.network.tls.files import TlsUnusable

_PEM = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)
_INTEGER, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME = 0x02, 0x30, 0x17, 0x18
_VERSION = 0xA0
_TIMES = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class CertificateName(NamedTuple):
    """The name of a certificate: the number is unique for its authority."""

    issuer: bytes
    """In DER."""
    serial: bytes


class RevocationList(NamedTuple):
    """One list of an authority."""

    revoked: frozenset[CertificateName]
    next_update: datetime | None
    """Time from which OpenSSL refuses every certificate of the authority."""


def certificate_name(certificate: bytes) -> CertificateName:
    """Return the name of a certificate in DER, which OpenSSL has verified."""
    (_, to_be_signed), *_ = _elements(_content(certificate))
    fields = [each for each in _elements(to_be_signed) if each[0] != _VERSION]
    (_, serial), _, (_, issuer), *_ = fields
    return CertificateName(issuer, serial)


def read_lists(path: str) -> list[RevocationList]:
    """Return the lists in a file. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    try:
        with open(path, "rb") as file:
            lists = [_parse(base64.b64decode(each)) for each in _PEM.findall(file.read())]
    except OSError as error:
        raise TlsUnusable(f"{path}: {why_unreadable(error)}") from None
    except (ValueError, IndexError, binascii.Error):
        lists = []
    if not lists:
        raise TlsUnusable(f"{path} holds no revocation list in PEM. Name the authorities' PEM file")
    return lists


def revoked_by(lists: Sequence[RevocationList]) -> frozenset[CertificateName]:
    """Return the certificates that any of the lists revokes."""
    return frozenset().union(*(each.revoked for each in lists))


def _parse(der: bytes) -> RevocationList:
    (_, to_be_signed), *_ = _elements(_content(der))
    fields = _elements(to_be_signed)
    if fields[0][0] == _INTEGER:  # the version
        del fields[0]
    (_, _algorithm), (_, issuer), (_, _this_update), *rest = fields
    next_update = None
    if rest and rest[0][0] in _TIMES:
        tag, text = rest.pop(0)
        next_update = datetime.strptime(text.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC)
    entries = _elements(rest[0][1]) if rest and rest[0][0] == _SEQUENCE else []
    return RevocationList(frozenset(CertificateName(issuer, _elements(each)[0][1]) for _, each in entries), next_update)


def _content(der: bytes) -> bytes:
    """Return the content of ``der``, which is one element."""
    ((_, content),) = _elements(der)
    return content


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of elements in a row (X.690 section 8.1). ``ValueError`` or ``IndexError`` for others."""
    found, at = [], 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length >= 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        if at + length > len(data):
            raise ValueError("an element goes on beyond its end")
        found.append((tag, data[at : at + length]))
        at += length
    return found

"""Fields of certificates that the standard library does not give for every certificate (RFC 5280 section 4.1)."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import NamedTuple

from weft.config.machine import why_unreadable
from weft.network.tls.files import TlsUnusable

INTEGER, SEQUENCE, UTC_TIME, GENERALIZED_TIME = 0x02, 0x30, 0x17, 0x18
_VERSION = 0xA0
_END = "-----END CERTIFICATE-----"
TIMES = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
"""Format of a time by its tag."""


class CertificateName(NamedTuple):
    """The name of a certificate: the number is unique for its authority."""

    issuer: bytes
    """In DER."""
    serial: bytes


def certificate_name(certificate: bytes) -> CertificateName:
    """Return the name of a certificate in DER, which OpenSSL has verified."""
    (_, serial), _, (_, issuer), *_ = _fields(certificate)
    return CertificateName(issuer, serial)


def certificate_end(path: str) -> datetime:
    """Return the time after which the first certificate of a PEM file is not valid. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            first = file.read().partition(_END)[0]
        _, _, _, (_, validity), *_ = _fields(ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN") :] + _END))
        _, end = elements(validity)
        return time_of(*end)
    except OSError as error:
        raise TlsUnusable(f"{path}: {why_unreadable(error)}") from None
    except (ValueError, IndexError, KeyError):
        raise TlsUnusable(f"{path} holds no certificate in PEM. Name the file of a certificate") from None


def time_of(tag: int, text: bytes) -> datetime:
    """Return the time of an element. ``KeyError`` or ``ValueError`` for another element."""
    return datetime.strptime(text.decode("ascii"), TIMES[tag]).replace(tzinfo=UTC)


def content(der: bytes) -> bytes:
    """Return the content of ``der``, which is one element. ``ValueError`` or ``IndexError`` for others."""
    ((_, inner),) = elements(der)
    return inner


def elements(data: bytes) -> list[tuple[int, bytes]]:
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


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of a certificate in DER, from its serial number on."""
    (_, to_be_signed), *_ = elements(content(certificate))
    return [each for each in elements(to_be_signed) if each[0] != _VERSION]

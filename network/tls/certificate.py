"""Fields of certificates that the standard library does not give for every certificate (RFC 5280 section 4.1)."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from weft.config.machine import why_unreadable
from weft.network.tls.files import TlsUnusable

INTEGER, SEQUENCE, UTC_TIME, GENERALIZED_TIME = 0x02, 0x30, 0x17, 0x18
_BOOLEAN, _BMP_TEXT = 0x01, 0x1E
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_COMMON_NAME, _ALTERNATIVE_NAMES, _BASIC_CONSTRAINTS = b"\x55\x04\x03", b"\x55\x1d\x11", b"\x55\x1d\x13"
"""Object identifiers: 2.5.4.3, 2.5.29.17 and 2.5.29.19."""
_DNS_NAME, _ADDRESS = 0x82, 0x87
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
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


class CertificateFacts(NamedTuple):
    """Facts that a certificate states."""

    issuer: bytes
    """In DER, as ``subject``."""
    subject: bytes
    end: datetime
    """Time after which it is not valid."""
    common_names: tuple[str, ...]
    hosts: tuple[str, ...]
    """Names and addresses of the host that it is for: those of subjectAltName."""
    is_authority: bool
    """True if it may sign others."""

    @property
    def is_self_issued(self) -> bool:
        """Return whether its issuer is itself."""
        return self.issuer == self.subject


def certificates_in(path: str) -> list[CertificateFacts]:
    """Return the facts of the certificates in a PEM file, one at least. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    with _naming(path):
        return [_facts(each) for each in _read(path)]


def certificate_end(path: str) -> datetime:
    """Return the time after which the first certificate of a PEM file is not valid. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    with _naming(path):
        _, _, _, (_, validity), *_ = _fields(_read(path)[0])
        _, end = elements(validity)
        return time_of(*end)


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


def _read(path: str) -> list[bytes]:
    """Return the certificates of a PEM file in DER, one at least."""
    with open(path, encoding="ascii", errors="replace") as file:
        found = [ssl.PEM_cert_to_DER_cert(pem) for pem in _PEM.findall(file.read())]
    if not found:
        raise ValueError("no certificate")
    return found


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TlsUnusable(f"{path}: {why_unreadable(error)}") from None
    except (ValueError, IndexError, KeyError):
        raise TlsUnusable(f"{path} holds no certificate in PEM. Name the file of a certificate") from None


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of a certificate in DER, from its serial number on."""
    (_, to_be_signed), *_ = elements(content(certificate))
    return [each for each in elements(to_be_signed) if each[0] != _VERSION]


def _facts(certificate: bytes) -> CertificateFacts:
    (_, to_be_signed), *_ = elements(content(certificate))
    is_version_1 = elements(to_be_signed)[0][0] != _VERSION
    _serial, _algorithm, (_, issuer), (_, validity), (_, subject), _key, *more = _fields(certificate)
    _, end = elements(validity)
    extensions = {
        identifier: value
        for tag, wrapped in more if tag == _EXTENSIONS
        for _, extension in elements(content(wrapped))
        for identifier, value in [_extension(extension)]
    }  # fmt: skip
    constraints = extensions.get(_BASIC_CONSTRAINTS)
    return CertificateFacts(
        issuer, subject, time_of(*end), tuple(_common_names(subject)),
        tuple(_hosts(extensions.get(_ALTERNATIVE_NAMES))),
        # Certificates of version 1 have no extension that could say so; OpenSSL takes them, too.
        is_version_1 if constraints is None else _BOOLEAN in dict(elements(content(constraints))),
    )  # fmt: skip


def _extension(extension: bytes) -> tuple[bytes, bytes]:
    """Return the identifier and the value of an extension."""
    (_, identifier), *_critical, (_, value) = elements(extension)
    return identifier, value


def _common_names(name: bytes) -> Iterator[str]:
    for _, part in elements(name):
        for _, attribute in elements(part):
            (_, identifier), (tag, text) = elements(attribute)
            if identifier == _COMMON_NAME:
                yield text.decode("utf-16-be" if tag == _BMP_TEXT else "utf-8", errors="replace")


def _hosts(names: bytes | None) -> Iterator[str]:
    for tag, name in elements(content(names)) if names is not None else ():
        if tag == _DNS_NAME:
            yield name.decode("ascii", errors="replace")
        elif tag == _ADDRESS and len(name) in (4, 16):
            yield str(ipaddress.ip_address(name))

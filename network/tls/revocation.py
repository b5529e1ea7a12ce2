"""Revocation lists (RFC 5280 section 5), as far as OpenSSL leaves them to the node.

OpenSSL checks certificates at handshakes only. It reports neither when a list is out of date, nor which open
connections must end.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from weft.config.machine import why_unreadable
from weft.network.tls.certificate import INTEGER, SEQUENCE, TIMES, CertificateName, content, elements, time_of
from weft.network.tls.files import TlsUnusable

_PEM = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)


class RevocationList(NamedTuple):
    """One list of an authority."""

    revoked: frozenset[CertificateName]
    next_update: datetime | None
    """Time from which OpenSSL refuses every certificate of the authority."""


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
    (_, to_be_signed), *_ = elements(content(der))
    fields = elements(to_be_signed)
    if fields[0][0] == INTEGER:  # the version
        del fields[0]
    (_, _algorithm), (_, issuer), (_, _this_update), *rest = fields
    next_update = None
    if rest and rest[0][0] in TIMES:
        next_update = time_of(*rest.pop(0))
    entries = elements(rest[0][1]) if rest and rest[0][0] == SEQUENCE else []
    return RevocationList(frozenset(CertificateName(issuer, elements(each)[0][1]) for _, each in entries), next_update)

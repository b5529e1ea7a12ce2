"""PEM files of one end of TLS connections."""

from __future__ import annotations

from dataclasses import dataclass


class TlsUnusable(OSError):
    """Certificate, key, authorities or revocation lists that cannot be used. The text names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener with TLS."""

    certificate: str
    """File of the listener's own certificate, with the chain that clients need after it."""
    key: str
    client_ca: str | None = None
    """File of the authorities of client certificates; None asks clients for none."""
    crl_file: str | None = None
    """File of the authorities' revocation lists; None: no certificate is revoked before it expires."""
    client_certificate_required: bool = True

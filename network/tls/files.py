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

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the files that are named."""
        named = (self.certificate, self.key, self.client_ca, self.crl_file)
        return tuple(path for path in named if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsFiles:
    """PEM files of an end that connects."""

    ca_file: str | None = None
    """File of the authorities that servers are trusted by; None: those of the system."""
    certificate: str | None = None
    """File of the client's own certificate, with its chain after it; None: it shows none."""
    key: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the files that are named."""
        return tuple(path for path in (self.ca_file, self.certificate, self.key) if path is not None)

"""TLS contexts from PEM files."""

from __future__ import annotations

import ssl
from typing import Any

from edge_node.listeners.settings import TlsFiles
from edge_node.listeners.tls_alert import AlertingContext


class TlsUnusable(OSError):
    """Certificate, key or authorities cannot be used. The sentence names the file."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for TLS 1.2 and later.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise TlsUnusable(f"certificate {files.certificate} with key {files.key}: {_why(error)}") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise TlsUnusable(f"client_ca {files.client_ca}: {_why(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificate_required else ssl.CERT_OPTIONAL
    return context


def common_name(peer_certificate: dict[str, Any] | None) -> str | None:
    """The common name of a client's certificate, which the handshake has verified; None without exactly one."""
    subject = (peer_certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 and names[0] else None


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; a node that starts by itself needs one that is not")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not PEM, or they do not belong together ({error.reason or error})"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)

"""TLS contexts from PEM files."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from weft.config.machine import unreadable
from weft.network.tls.alert import AlertingContext
from weft.network.tls.certificate import CertificateName, certificate_end
from weft.network.tls.files import ClientTlsFiles, TlsFiles, TlsUnusable
from weft.network.tls.revocation import read_lists, revoked_by


class TlsInForce(NamedTuple):
    """Content of the files of a listener."""

    context: ssl.SSLContext
    """For further handshakes."""
    revoked: frozenset[CertificateName]
    """Certificates whose open connections end."""
    expires: datetime
    """End of the listener's own certificate."""


def read_tls(files: TlsFiles) -> TlsInForce:
    """Read the files. Blocks.

    Raises:
        TlsUnusable: as ``server_context`` does.
    """
    revoked = frozenset[CertificateName]() if files.crl_file is None else revoked_by(read_lists(files.crl_file))
    return TlsInForce(server_context(files), revoked, certificate_end(files.certificate))


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # In TLS 1.2 a client could ask for handshake after handshake on one connection, past every bound on them.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _check_readable(files.paths)
    _load_pair(context, files.certificate, files.key)
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca)
        if files.crl_file is not None:
            _check_revocation(context, files.crl_file)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificate_required else ssl.CERT_OPTIONAL
    return context


def client_context(files: ClientTlsFiles) -> ssl.SSLContext:
    """Return a context for connections to servers by TLS 1.2 and later, which verifies name and authority. Blocks.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    _check_readable(files.paths)
    if files.ca_file is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, files.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(("http/1.1",))
    if files.certificate is not None and files.key is not None:
        _load_pair(context, files.certificate, files.key)
    return context


def own_context(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the server of one certificate, under any name: one of this machine. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _check_readable([certificate])
    _load_authorities(context, certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _check_readable(paths: Iterable[str]) -> None:
    for path in paths:
        if problem := unreadable(path):
            raise TlsUnusable(f"{path}: {problem}")


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise TlsUnusable(_why(error, certificate, key)) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError:
        raise TlsUnusable(f"{path} holds no certificate in PEM. Name the authorities' PEM file") from None


def _check_revocation(context: ssl.SSLContext, path: str) -> None:
    """Refuse certificates that the lists in a file revoke.

    Only the client's own certificate is looked up: few authorities publish lists of the intermediate ones. A session
    that a client resumes is not verified again, but a later context does not accept its ticket.
    """
    read_lists(path)  # OpenSSL would accept a file without one
    context.load_verify_locations(path)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def common_name(peer_certificate: dict[str, Any] | None) -> str | None:
    """Return the common name of a client's certificate, which the handshake has verified; None without exactly one."""
    subject = (peer_certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 and names[0] else None


def _refuse_password() -> str:
    raise ValueError


def _why(error: Exception, certificate: str, key: str) -> str:
    """Return the reason why certificate and key cannot be used together, and what to do."""
    if not isinstance(error, ssl.SSLError):
        return f"{key} is encrypted, and the node cannot ask for the password. Decrypt the key (`openssl pkey`)"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{key} is not the key of {certificate}: they do not belong together. Name a matching pair"
    return (
        f"{certificate} is not a certificate in PEM, or {key} is not a key. "
        "Name the certificate with its chain, and its key"
    )

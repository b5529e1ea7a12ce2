"""TLS contexts from PEM files."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime
from typing import Any, NamedTuple

from weft.config.machine import unreadable
from weft.network.tls.alert import AlertingContext
from weft.network.tls.files import TlsFiles, TlsUnusable
from weft.network.tls.revocation import CertificateName, read_lists, revoked_by


class TlsInForce(NamedTuple):
    """Content of the files of a listener."""

    context: ssl.SSLContext
    """For further handshakes."""
    revoked: frozenset[CertificateName]
    """Certificates whose open connections end."""


def read_tls(files: TlsFiles) -> TlsInForce:
    """Read the files. Blocks.

    Raises:
        TlsUnusable: as ``server_context`` does.
    """
    revoked = frozenset[CertificateName]() if files.crl_file is None else revoked_by(read_lists(files.crl_file))
    return TlsInForce(server_context(files), revoked)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (files.certificate, files.key, files.client_ca, files.crl_file):
        if path is not None and (problem := unreadable(path)):
            raise TlsUnusable(f"{path}: {problem}")
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise TlsUnusable(_why(error, files)) from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError:
            raise TlsUnusable(
                f"{files.client_ca} holds no certificate in PEM. Name the authorities' PEM file"
            ) from None
        if files.crl_file is not None:
            _check_revocation(context, files.crl_file)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificate_required else ssl.CERT_OPTIONAL
    return context


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


def expiry(files: TlsFiles) -> tuple[str | None, datetime | None]:
    """Return the validity of the certificate of usable files, found by a handshake in memory.

    Returns:
        The reason why clients refuse it now, and the time of its expiry where that is in the future.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(files.certificate)
    # The certificate itself is the anchor: only clients know the authorities that they trust.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server = server_context(TlsFiles(certificate=files.certificate, key=files.key))
    try:
        certificate = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message), None
    except ssl.SSLError as error:
        return (error.reason or str(error)).replace("_", " ").lower(), None
    return None, datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Shake hands in memory, and return the client's view of the server's certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
                if not end.server_side:
                    return end.getpeercert() or {}
    raise AssertionError("the client ends its handshake before the server")


def _refuse_password() -> str:
    raise ValueError


def _why(error: Exception, files: TlsFiles) -> str:
    """Return the reason why certificate and key cannot be used together, and what to do."""
    if not isinstance(error, ssl.SSLError):
        return f"{files.key} is encrypted, and the node cannot ask for the password. Decrypt the key (`openssl pkey`)"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{files.key} is not the key of {files.certificate}: they do not belong together. Name a matching pair"
    return (
        f"{files.certificate} is not a certificate in PEM, or {files.key} is not a key. "
        "Name the certificate with its chain, and its key"
    )

"""Checks of PEM files before they are used: what keeps them from use, what others refuse, what ends soon."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Literal, NamedTuple

from weft.config.errors import Finding, KeyPath
from weft.config.machine import too_readable
from weft.network.tls.certificate import CertificateFacts, certificate_end, certificates_in
from weft.network.tls.contexts import client_context, server_context
from weft.network.tls.files import ClientTlsFiles, TlsFiles, TlsUnusable
from weft.network.tls.revocation import read_lists

EXPIRES_SOON = timedelta(days=14)
"""Time before the expiry of a certificate from which on a check warns."""


class Effect(Enum):
    """Effect of a finding on the end whose files they are."""

    UNUSABLE = auto()
    """It cannot use the files."""
    REFUSED = auto()
    """It runs, and others refuse it, or it refuses them."""
    DOUBTFUL = auto()
    """It works, perhaps not as intended or not for long."""


class TlsFinding(NamedTuple):
    """A finding about PEM files."""

    effect: Effect
    finding: Finding


def server_findings(path: KeyPath, files: TlsFiles, now: datetime, refuse: str) -> Iterator[TlsFinding]:
    """Yield the findings about the files of a listener. Blocks.

    Args:
        path: the section of the files.
        refuse: who refuses a certificate that is not valid: ``clients refuse``.
    """
    try:
        server_context(files)
    except TlsUnusable as error:
        yield TlsFinding(Effect.UNUSABLE, Finding(path, str(error)))
        return
    if files.client_ca is not None:
        yield from _of_authorities((*path, "client_ca"), files.client_ca, "client")
    for each in () if files.crl_file is None else read_lists(files.crl_file):
        if each.next_update is not None and each.next_update < now:
            message = (
                f"a list in {files.crl_file} was to be replaced by {each.next_update:%Y-%m-%d}: every certificate of "
                "its authority is refused. Fetch the newest one"
            )
            yield TlsFinding(Effect.REFUSED, Finding((*path, "crl_file"), message))
    yield from _of_certificate(path, files.certificate, files.key, now, refuse, is_client=False)


def client_findings(path: KeyPath, files: ClientTlsFiles, now: datetime, refuse: str) -> Iterator[TlsFinding]:
    """Yield the findings about the files of an end that connects. Blocks.

    Args:
        path: the section of the files.
        refuse: who refuses a certificate that is not valid: ``the hub refuses``.
    """
    try:
        client_context(files)
    except TlsUnusable as error:
        key = "ca_file" if files.ca_file is not None and str(error).startswith(files.ca_file) else "certificate"
        yield TlsFinding(Effect.UNUSABLE, Finding((*path, key), str(error)))
        return
    if files.ca_file is not None:
        end = certificate_end(files.ca_file)
        if end < now:
            message = f"the first authority in {files.ca_file} has expired on {end:%Y-%m-%d}. Fetch its new certificate"
            yield TlsFinding(Effect.REFUSED, Finding((*path, "ca_file"), message))
        yield from _of_authorities((*path, "ca_file"), files.ca_file, "server")
    if files.certificate is not None and files.key is not None:
        yield from _of_certificate(path, files.certificate, files.key, now, refuse, is_client=True)


def _of_certificate(
    path: KeyPath, certificate: str, key: str, now: datetime, refuse: str, *, is_client: bool
) -> Iterator[TlsFinding]:
    at, end = (*path, "certificate"), certificate_end(certificate)
    if end < now:
        message = f"{refuse} {certificate}: it has expired on {end:%Y-%m-%d}. Renew it"
        yield TlsFinding(Effect.REFUSED, Finding(at, message))
    elif why := refusal(certificate, key, is_client=is_client):
        yield TlsFinding(Effect.REFUSED, Finding(at, f"{refuse} {certificate}: {why}. Renew it"))
    elif end - now < EXPIRES_SOON:
        message = f"{certificate} expires on {end:%Y-%m-%d}. Renew it before"
        yield TlsFinding(Effect.DOUBTFUL, Finding(at, message))
    if problem := too_readable(key):
        yield TlsFinding(Effect.DOUBTFUL, Finding((*path, "key"), problem))


def _of_authorities(path: KeyPath, file: str, others: Literal["client", "server"]) -> Iterator[TlsFinding]:
    """Yield what is wrong with a file that OpenSSL takes as the authorities of others."""
    try:
        found = certificates_in(file)
    except TlsUnusable:  # it has one that OpenSSL reads and this does not
        return
    roots = [each for each in found if each.is_self_issued]
    if not roots and not any(each.is_authority for each in found):
        message = (
            f"no {others} is ever accepted by {file}: it holds no authority, but {_named(found[0])} that one has "
            "signed. Name the authority's own certificate"
        )
        yield TlsFinding(Effect.REFUSED, Finding(path, message))
    elif not roots:
        message = (
            f"no {others} is ever accepted by {file}: the authority in it was signed by another, which is missing. Add "
            "that one's certificate"
        )
        yield TlsFinding(Effect.REFUSED, Finding(path, message))
    elif others == "client" and not any(  # a server that signs its own certificate is often trusted by that one
        each.is_authority for each in found
    ):
        message = (
            f"{file} holds no authority, but {_named(found[0])}: no {others} is accepted but with that very "
            "certificate. Name an authority"
        )
        yield TlsFinding(Effect.DOUBTFUL, Finding(path, message))


def _named(certificate: CertificateFacts) -> str:
    names = certificate.common_names or certificate.hosts
    return f"the certificate of {names[0]!r}" if names else "a certificate"


def valid_until(certificates: Iterable[str]) -> dict[str, str]:
    """Return the last day of each certificate that can be read, by its file. Blocks."""
    found = {}
    for path in certificates:
        with contextlib.suppress(TlsUnusable):
            found[path] = f"{certificate_end(path):%Y-%m-%d}"
    return found


def refusal(certificate: str, key: str, *, is_client: bool = False, host: str | None = None) -> str | None:
    """Return why the other end refuses a usable certificate now, found by a handshake in memory; None if it does not.

    Args:
        is_client: whether the certificate is shown to a server.
        host: name or address under which a client calls the server; None: any will do.
    """
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = host is not None
    if is_client:
        client.verify_mode = ssl.CERT_NONE
    server.load_cert_chain(certificate, key)
    if is_client:
        client.load_cert_chain(certificate, key)
    verifier = server if is_client else client
    verifier.verify_mode = ssl.CERT_REQUIRED
    verifier.load_verify_locations(certificate)
    # The certificate itself is the anchor: only the other end knows the authorities that it trusts.
    verifier.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        _handshake(server, client, host)
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    except ssl.SSLError as error:
        return (error.reason or str(error)).replace("_", " ").lower()
    return None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> None:
    """Shake hands in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)

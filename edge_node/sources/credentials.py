"""Credentials of a source at its broker: password and certificates, read at each connection: they may change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from weft.config.intake.sources import SourceSettings
from weft.config.machine import why_unreadable
from weft.config.units import Address
from weft.edge_node.check.sources import PORTS

PASSWORD_BYTES_MAX = 65_535
"""Longest password in MQTT."""


class CredentialsUnusable(Exception):
    """A password or certificate cannot be read; the text has the reason and the remedy."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting
        """Setting at fault, such as ``password_file`` or ``tls``."""


class BrokerUrl(NamedTuple):
    """A broker's node from a URL."""

    scheme: str
    address: Address
    path: str
    """Virtual host of AMQP: ``/`` without one."""

    @property
    def is_tls(self) -> bool:
        """Return whether TLS protects the connection."""
        return self.scheme.endswith("s")


def target_of(url: str) -> BrokerUrl:
    """Parse a checked URL."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    return BrokerUrl(parts.scheme, Address(host, port), unquote(parts.path[1:]) or "/")


def read_password(settings: SourceSettings, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the password of a source; None when none is set. Blocks.

    Raises:
        CredentialsUnusable: the file or the variable is missing, or has no password.
    """
    if settings.password_env is not None:
        value = environment.get(settings.password_env)
        if not value:
            message = f"the node has no environment variable {settings.password_env}. Set it where the node is started"
            raise CredentialsUnusable("password_env", message)
        return value.encode()
    file = settings.password_file
    if file is None:
        return None
    try:
        with open(file, "rb") as opened:
            data = opened.read(PASSWORD_BYTES_MAX + 2)
    except OSError as error:
        raise CredentialsUnusable("password_file", f"{file}: {why_unreadable(error)}") from None
    line, _, rest = data.partition(b"\n")
    password = line.removesuffix(b"\r")
    if not password or rest.strip() or len(password) > PASSWORD_BYTES_MAX:
        raise CredentialsUnusable("password_file", f"{file}: expected a password, alone on one line. Write it there")
    return password


class _NamedContext(ssl.SSLContext):
    """A context for a broker whose certificate has another name than its URL."""

    name = ""

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**more, "server_hostname": self.name})


def client_context(settings: SourceSettings) -> ssl.SSLContext:
    """Return the TLS context of a source. Blocks.

    Raises:
        CredentialsUnusable: a file cannot be read, or has other content than it must.
    """
    tls = settings.tls
    name = tls.server_name if tls is not None else None
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT) if name else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(context, _NamedContext):
        context.name = name or ""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls is None or tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(tls.ca_file)
        except OSError as error:
            raise CredentialsUnusable("tls.ca_file", _tls_told(tls.ca_file, error, "PEM certificates")) from None
    if tls is not None and tls.certificate is not None:
        try:
            # OpenSSL would ask at the terminal for the password of an encrypted key.
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
        except OSError as error:
            files = tls.certificate if tls.key is None else f"{tls.certificate} with {tls.key}"
            raise CredentialsUnusable("tls.certificate", _tls_told(files, error, "a certificate and its key")) from None
    return context


def _tls_told(files: str, error: OSError, wanted: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{files}: expected {wanted} in PEM ({error.reason or 'not readable'})"
    return f"{error.filename or files}: {why_unreadable(error)}"

"""Credentials of a source at its broker: password and certificates, read at each connection: they may change."""

from __future__ import annotations

import importlib.util
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.machine import CREDENTIALS, too_readable, why_unreadable
from weft.config.models import EdgeConfig
from weft.config.sources import BrokerSettings, ModbusSource, OpcuaSource, Source, SourceSettings
from weft.config.units import Address
from weft.edge_node.check.sources import PORTS, brokers, listeners_on, loop_message, own_listeners

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
        return os.fsencode(value)
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


def password_text(settings: SourceSettings, password: bytes | None) -> str | None:
    """Return a password for a protocol that has text; None when none is set.

    Raises:
        CredentialsUnusable: it is not UTF-8.
    """
    if password is None:
        return None
    try:
        return password.decode()
    except UnicodeDecodeError:
        name = "password_file" if settings.password_env is None else "password_env"
        message = f"{getattr(settings, name)}: expected a password in UTF-8. Write it there in that encoding"
        raise CredentialsUnusable(name, message) from None  # the first error has the password


class _NamedContext(ssl.SSLContext):
    """A context for a broker whose certificate has another name than its URL."""

    name = ""

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**more, "server_hostname": self.name})


def client_context(settings: BrokerSettings) -> ssl.SSLContext:
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
            raise CredentialsUnusable("tls.ca_file", _tls_reason(tls.ca_file, error, "PEM certificates")) from None
    if tls is not None and tls.certificate is not None:
        try:
            # OpenSSL would ask at the terminal for the password of an encrypted key.
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
        except OSError as error:
            files = tls.certificate if tls.key is None else f"{tls.certificate} with {tls.key}"
            raise CredentialsUnusable(
                "tls.certificate", _tls_reason(files, error, "a certificate and its key")
            ) from None
    return context


def _tls_reason(files: str, error: OSError, wanted: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{files}: expected {wanted} in PEM ({error.reason or 'not readable'})"
    return f"{error.filename or files}: {why_unreadable(error)}"


# Checks of a source against this machine: files, libraries, and whether its broker is the node itself.


class SourceFindings(NamedTuple):
    """Findings about one source, by their effect on the node."""

    needed: list[Finding]
    """Findings that keep the node from starting."""
    unfit: list[Finding]
    """Findings with which the node starts, and the source cannot connect."""
    doubtful: list[Finding]


def library_missing(source: Source) -> str:
    """Return what to do about a library that a source needs and is not installed; empty if none is missing."""
    needed: tuple[tuple[str, str, str], ...] = ()
    if source.amqp is not None:
        needed = (("aio_pika", "aio-pika", "sources"),)
    elif source.opcua is not None:
        needed = (("asyncua", "asyncua", "plant"),)
    elif source.modbus is not None:
        is_serial = source.modbus.url.startswith("serial:")
        needed = (("pymodbus", "pymodbus", "plant"), *((("serial", "pyserial", "plant"),) if is_serial else ()))
    for module, library, extra in needed:
        if importlib.util.find_spec(module) is None:
            return f"needs the library {library}, which is not installed. Run `pip install 'weft-fabric[{extra}]'`"
    return ""


def look_at(config: EdgeConfig, name: str, source: Source) -> SourceFindings:
    """Open the files that a source names. Blocks; changes nothing."""
    found = SourceFindings([], [], [])
    kind, _ = source.chosen
    path: KeyPath = ("sources", name, kind)
    if missing := library_missing(source):
        found.needed.append(Finding(path, missing))
    if source.modbus is not None:
        _look_at_port(path, source.modbus, found)
    settings = source.server
    if settings is None:
        return found
    _look_at_credentials(path, settings, found)
    if not any(own_listeners(config, source)):
        found.needed.extend(_own_by_name(config, path, settings))
    for scheme, broker in brokers(settings):
        if scheme in ("mqtt", "amqp") and not broker.is_loopback and settings.username is not None:
            message = f"the password crosses the network in clear text to {broker}. Use {scheme}s"
            found.doubtful.append(Finding((*path, "url"), message))
    return found


def _look_at_port(path: KeyPath, settings: ModbusSource, found: SourceFindings) -> None:
    port = urlsplit(settings.url).path
    if port and not os.path.exists(port):
        found.unfit.append(Finding((*path, "url"), f"{port}: there is no such device on this machine"))
    elif port and not os.access(port, os.R_OK | os.W_OK):
        message = f"{port} cannot be opened. Add the node's user to its group, such as dialout"
        found.unfit.append(Finding((*path, "url"), message))


def _look_at_credentials(path: KeyPath, settings: SourceSettings, found: SourceFindings) -> None:
    file = settings.password_file
    try:
        password = read_password(settings)
        if isinstance(settings, OpcuaSource):
            password_text(settings, password)
    except CredentialsUnusable as error:
        if error.setting == "password_env":
            message = f"{error}, or the check is not run where the node is"
            found.doubtful.append(Finding((*path, error.setting), message))
        elif file is not None and file.startswith(CREDENTIALS) and not os.path.lexists(file):
            message = f"{file} exists only while systemd runs the unit, so it was not checked"
            found.doubtful.append(Finding((*path, error.setting), message))
        else:
            found.unfit.append(Finding((*path, error.setting), str(error)))
    else:
        if file is not None and (problem := too_readable(file)):
            found.doubtful.append(Finding((*path, "password_file"), problem))
    if not isinstance(settings, BrokerSettings) or settings.tls is None:
        return
    try:
        client_context(settings)
    except CredentialsUnusable as error:
        found.unfit.append(Finding((*path, *error.setting.split(".")), str(error)))
    except ssl.SSLError as error:
        found.unfit.append(Finding((*path, "tls"), str(error)))
    key = settings.tls.key
    if key is not None and (problem := too_readable(key)):
        found.doubtful.append(Finding((*path, "tls", "key"), problem))


def _own_by_name(config: EdgeConfig, path: KeyPath, settings: SourceSettings) -> list[Finding]:
    """Find listeners of the node behind names and addresses of this machine. Only for brokers on a port of a listener:
    names take time to resolve."""
    found = []
    for _, broker in brokers(settings):
        for listener, bind in listeners_on(config, broker.port):
            try:
                theirs = {each[4][0] for each in socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)}
                own = {each[4][0] for each in socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM)}
            except OSError:
                continue  # the source reports it when it connects
            is_every = bind.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
            if theirs & own or (is_every and any(map(_is_of_this_machine, map(str, theirs)))):
                found.append(Finding((*path, "url"), loop_message(listener, broker)))
    return found


def _is_of_this_machine(host: str) -> bool:
    """Return whether an address belongs to this machine: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))
    except OSError:
        return False
    return True

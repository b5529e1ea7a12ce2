"""Checks of a source against this machine: files, libraries, and whether its broker is the node itself."""

from __future__ import annotations

import importlib.util
import os
import socket
import ssl
from typing import NamedTuple

from weft.config.errors import Finding, KeyPath
from weft.config.intake.sources import Source, SourceSettings
from weft.config.machine import CREDENTIALS, too_readable
from weft.config.models import EdgeConfig
from weft.edge_node.check.sources import brokers, listeners_on, loop_message, own_listeners
from weft.edge_node.sources.credentials import CredentialsUnusable, client_context, read_password

AMQP_LIBRARY = "aio_pika"
NOT_INSTALLED = "needs the library aio-pika, which is not installed. Run `pip install 'weft-fabric[sources]'`"


class SourceFindings(NamedTuple):
    """Findings about one source, by their effect on the node."""

    needed: list[Finding]
    """Findings that keep the node from starting."""
    unfit: list[Finding]
    """Findings with which the node starts, and the source cannot connect."""
    doubtful: list[Finding]


def library_missing(source: Source) -> bool:
    """Return whether a source needs a library that is not installed."""
    return source.amqp is not None and importlib.util.find_spec(AMQP_LIBRARY) is None


def look_at(config: EdgeConfig, name: str, source: Source) -> SourceFindings:
    """Open the files that a source names. Blocks; changes nothing."""
    found = SourceFindings([], [], [])
    kind, settings = source.chosen
    path: KeyPath = ("sources", name, kind)
    if library_missing(source):
        found.needed.append(Finding(path, NOT_INSTALLED))
    _look_at_credentials(path, settings, found)
    if not any(own_listeners(config, source)):
        found.needed.extend(_own_by_name(config, path, settings))
    for scheme, broker in brokers(settings):
        if not scheme.endswith("s") and not broker.is_loopback and settings.username is not None:
            message = f"the password crosses the network in clear text to {broker}. Use {scheme}s"
            found.doubtful.append(Finding((*path, "url"), message))
    return found


def _look_at_credentials(path: KeyPath, settings: SourceSettings, found: SourceFindings) -> None:
    file = settings.password_file
    try:
        read_password(settings)
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
    if settings.tls is None:
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

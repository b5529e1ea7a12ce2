"""Checks of an edge's configuration against this machine: files, the disk, ports. ``check`` covers the settings
alone.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.links import Link
from weft.config.listeners import bind_of
from weft.config.machine import CREDENTIALS, folder, not_listening, too_readable, too_small, why_unreadable
from weft.config.models import EdgeConfig
from weft.config.signing import read_public_keys
from weft.config.units import Address, UnixSocket, parse_bind, parse_listen
from weft.edge_node.access import identity, users
from weft.edge_node.check.data_directory import source_of
from weft.edge_node.check.streams import COPIES_MAX, copy_budget, is_derived
from weft.edge_node.links.links import link_tls
from weft.edge_node.servers.listeners.settings import listener_settings
from weft.network import tracing as tracing_checks
from weft.network.reload import read_token
from weft.network.tls import (
    Effect,
    TlsFinding,
    TlsUnusable,
    certificates_in,
    client_findings,
    server_findings,
    valid_until,
)
from weft.protocols.lane import NodeName, node_in_certificate
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log.encryption import KeyRing, KeyUnavailable, has_ring, library

_BUDGET: KeyPath = ("disk", "budget")


@dataclass
class EdgeFindings:
    """Findings about an edge's machine, by their effect on the node."""

    needed: list[Finding] = field(default_factory=list)
    """Findings that keep the node from starting."""
    unfit: list[Finding] = field(default_factory=list)
    """Findings with which the node starts, and a part of its work cannot succeed."""
    certificates: dict[str, str] = field(default_factory=dict)
    """Last day of each certificate that is shown to others, by its file."""
    doubtful: list[Finding] = field(default_factory=list)
    """Findings with which the node works, perhaps not as intended."""


def look(config: EdgeConfig, written: Container[KeyPath], now: datetime) -> EdgeFindings:
    """Open what the configuration names, except ports. Blocks; changes nothing.

    Args:
        written: settings in the file. A default that does not fit the machine is only doubtful.
        now: time for the validity of certificates.
    """
    found = EdgeFindings()
    _look_at_disk(config, written, found)
    _look_at_key(config, found)
    _look_at_accounts(config, found)
    for listener in listener_settings(config):
        if listener.tls is not None:
            path = ("listeners", listener.name, "tls")
            _add(server_findings(path, listener.tls, now, "clients refuse"), found, unusable=found.needed)
    for name, link in config.links.items():
        _look_at_link(("links", name), link, found)
        _look_at_certificate(("links", name), link, NodeName(config.tenant, config.node), found)
        # A link whose files cannot be used waits for others; the node takes messages meanwhile.
        _add(client_findings(("links", name), link_tls(link), now, "the hub refuses"), found, unusable=found.unfit)
    shown = [each.tls.certificate for each in listener_settings(config) if each.tls is not None]
    found.certificates = valid_until(
        [*shown, *(link.certificate for link in config.links.values() if link.certificate)]
    )
    _look_at_sources(config, found)
    _look_at_functions(config, found)
    traces = tracing_checks.look_at(config.tracing)
    found.unfit += traces.unfit
    found.doubtful += traces.doubtful
    _look_at_signing_keys(config, found)
    if not config.streams:
        message = 'there are none, so no table gets a message. Add one, such as `telemetry: {from: "#"}`'
        found.doubtful.append(Finding(("streams",), message))
    return found


def ports(config: EdgeConfig) -> tuple[list[Finding], list[Finding]]:
    """Bind every address for a moment. Blocks.

    Returns:
        Addresses that the node could not listen at; and a finding for ports not tried, because the running node has
            them.
    """
    from weft.edge_node.inspect.view import is_locked  # readers of logs, which a running node does not need

    if is_locked(config.data_dir):
        return [], [Finding(("data_dir",), f"a node runs with {config.data_dir}, so its ports were not tried")]
    problems = ((path, not_listening(bind)) for path, bind in _binds(config))
    return [Finding(path, problem) for path, problem in problems if problem], []


def _binds(config: EdgeConfig) -> Iterator[tuple[KeyPath, Address | UnixSocket]]:
    for name, listener in config.listeners.items():
        if listener is not None:
            yield ("listeners", name, "bind"), parse_listen(bind_of(name, listener))
    if config.http is not None:
        yield ("http", "bind"), parse_bind(config.http.bind)


def _look_at_functions(config: EdgeConfig, found: EdgeFindings) -> None:
    if any(map(is_derived, config.streams.values())):
        # Imported here: it takes megabytes, which a check of other nodes saves.
        from weft.edge_node.derived.definitions import function_files, function_findings, function_notes

        found.needed += function_findings(config)
        found.unfit += function_files(config)
        found.doubtful += function_notes(config)


def _look_at_signing_keys(config: EdgeConfig, found: EdgeFindings) -> None:
    """Read the public keys of signatures. What only an unusable one has signed is refused; the node works."""
    lists: list[tuple[KeyPath, tuple[str, ...]]] = [(("functions_signed_by",), config.functions_signed_by)]
    for name, link in config.links.items():
        path: KeyPath = ("links", name, "config_signed_by")
        lists.append((path, link.config_signed_by))
        if link.config_signed_by and link.config_from_hub == "never":
            found.doubtful.append(Finding(path, "has no effect: config_from_hub allows the hub no settings"))
    for path, files in lists:
        found.unfit += [Finding(path, problem) for problem in dict.fromkeys(read_public_keys(files).problems)]


def _look_at_sources(config: EdgeConfig, found: EdgeFindings) -> None:
    if config.sources:
        # Imported here: a check of other nodes needs none of these modules.
        from weft.edge_node.sources.credentials import library_missing, look_at

        for name, source in config.sources.items():
            looked = look_at(config, name, source)
            if source.opcua is not None and not library_missing(source):
                from weft.edge_node.sources.opcua_client import look_at_security

                look_at_security(("sources", name, "opcua"), source.opcua, looked)
            found.needed += looked.needed
            found.unfit += looked.unfit
            found.doubtful += looked.doubtful


def _look_at_disk(config: EdgeConfig, written: Container[KeyPath], found: EdgeFindings) -> None:
    problem = folder(config.data_dir)
    if problem:
        found.needed.append(Finding(("data_dir",), problem))
        return
    _look_at_formats(config.data_dir, found)
    beyond_disk, beyond_free = too_small(config.data_dir, config.disk.budget_bytes + COPIES_MAX * copy_budget(config))
    if beyond_disk:
        (found.unfit if _BUDGET in written else found.doubtful).append(Finding(_BUDGET, beyond_disk))
    elif beyond_free:
        found.doubtful.append(Finding(_BUDGET, beyond_free))


def _look_at_key(config: EdgeConfig, found: EdgeFindings) -> None:
    """Read the key, and open the ring of a folder that has one."""
    try:
        source = source_of(config)
        if source is not None:
            masters, disk = source.masters(), OSFileSystem()
            library()
            if has_ring(disk, config.data_dir):
                KeyRing(disk, config.data_dir, source, masters)
        elif has_ring(OSFileSystem(), config.data_dir):
            message = "is missing: the data_dir is encrypted. Name the source of its key"
            found.needed.append(Finding(("encryption",), message))
    except KeyUnavailable as error:
        found.needed.append(Finding(("encryption",), str(error)))


def _look_at_formats(directory: str, found: EdgeFindings) -> None:
    # Imported here: a check of a node that has never run needs none of these modules.
    if os.path.isdir(directory):
        from weft.edge_node.check.data_directory import formats_of
        from weft.storage.segment_log import LogVersionError

        try:
            formats_of(directory, "").check()
        except LogVersionError as error:
            found.needed.append(Finding(("data_dir",), str(error)))
        except OSError as error:
            found.needed.append(Finding(("data_dir",), f"{directory}: {why_unreadable(error)}"))


def _look_at_accounts(config: EdgeConfig, found: EdgeFindings) -> None:
    auth, names = config.auth, frozenset[str]()
    if auth.users_file is not None:
        path: KeyPath = ("auth", "users_file")
        try:
            names = frozenset(users.read(auth.users_file))
            if not names:
                advice = f"Add users with `weft user add NAME --file {auth.users_file}`"
                found.doubtful.append(Finding(path, f"{auth.users_file} names no user. {advice}"))
        except OSError as error:
            advice = f"`weft user add NAME --file {auth.users_file}` creates one" if _is_missing(error) else ""
            found.needed.append(Finding(path, _reason(auth.users_file, error, advice)))
        except users.UsersUnusable as error:
            found.needed.append(Finding(path, str(error)))
        found.doubtful += _too_readable(path, auth.users_file)
    if auth.acl_file is not None:
        _look_at_acl(auth.acl_file, names if auth.users_file is not None else None, found)


def _look_at_acl(file: str, names: frozenset[str] | None, found: EdgeFindings) -> None:
    path: KeyPath = ("auth", "acl_file")
    try:
        named = identity.read(file).users
        strangers = sorted(named - names) if names is not None else []
    except OSError as error:
        advice = "Write rules into it, such as `topic readwrite plant/#` (docs/reference/access-rules.md)"
        found.needed.append(Finding(path, _reason(file, error, advice if _is_missing(error) else "")))
    except identity.AclUnusable as error:
        found.needed.append(Finding(path, str(error)))
    else:
        message = "has rules for users that are not in auth.users_file"
        found.doubtful += (
            [Finding(path, f"{file} {message}: {', '.join(strangers[:5])}. Add them")] if strangers else []
        )


def _add(findings: Iterable[TlsFinding], found: EdgeFindings, *, unusable: list[Finding]) -> None:
    lists = {Effect.UNUSABLE: unusable, Effect.REFUSED: found.unfit, Effect.DOUBTFUL: found.doubtful}
    for each in findings:
        lists[each.effect].append(each.finding)


def _look_at_link(path: KeyPath, link: Link, found: EdgeFindings) -> None:
    at, file = (*path, "token_file"), link.token_file
    distant = [url for url in map(urlsplit, link.to) if not Address(url.hostname or "", 0).is_loopback]
    for url in map(urlsplit, link.to):
        if url.scheme == "http" and url.port is None:
            message = f"{url.geturl()} means port 80, and a hub listens at 8090 by default. Write the port"
            found.doubtful.append(Finding((*path, "to"), message))
    if file is None:
        if distant and link.certificate is None:
            message = "is missing: hubs that other machines reach require a token. `weft hub token add` makes one there"
            found.doubtful.append(Finding(at, message))
        return
    for url in distant:
        if url.scheme == "http":
            message = f"the token crosses the network in clear text to {url.geturl()}. Use https"
            found.doubtful.append(Finding((*path, "to"), message))
    try:
        read_token(file)
    except FileNotFoundError as error:
        if file.startswith(CREDENTIALS):
            message = f"{file} exists only while systemd runs the unit, so it was not checked"
            found.doubtful.append(Finding(at, message))
        else:
            advice = "Write the token into it that `weft hub token add` printed at the hub"
            found.unfit.append(Finding(at, _reason(file, error, advice)))
    except OSError as error:
        found.unfit.append(Finding(at, _reason(file, error)))
    except ValueError as error:
        found.unfit.append(Finding(at, str(error)))
    else:
        found.doubtful += _too_readable(at, file)


def _look_at_certificate(path: KeyPath, link: Link, node: NodeName, found: EdgeFindings) -> None:
    """Hold the name in a link's certificate against the node's, as a hub does."""
    try:
        names = certificates_in(link.certificate)[0].common_names if link.certificate is not None else None
    except TlsUnusable:  # others say so
        return
    if names is None or (len(names) == 1 and node_in_certificate(names[0]) == node):
        return
    wanted = node.edge if node.tenant == "default" else f"{node.tenant}/{node.edge}"
    message = f"{link.certificate} is for {' and '.join(map(repr, names)) or 'no one'}, and this edge is {wanted!r}"
    at = (*path, "certificate")
    if link.token_file is None:
        found.unfit.append(Finding(at, f"the hub refuses the link: {message}. Issue one with this common name"))
    else:  # the token decides, where the hub has tokens
        found.doubtful.append(Finding(at, f"{message}. A hub without tokens refuses it"))


def _too_readable(path: KeyPath, file: str) -> list[Finding]:
    problem = too_readable(file)
    return [Finding(path, problem)] if problem else []


def _reason(file: str, error: OSError, advice: str = "") -> str:
    return f"{file}: {why_unreadable(error)}" + (f". {advice}" if advice else "")


def _is_missing(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError)


# An edge's configuration against this machine: what keeps the node from starting or from its work, and a doctor that
# also measures and calls.

__all__ = ["EdgeFindings", "look", "ports"]

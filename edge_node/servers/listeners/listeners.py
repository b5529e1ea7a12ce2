"""All listeners of a node, their accounts, and the files that are read again."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import resource
from collections.abc import Iterator, Mapping
from datetime import datetime

from weft.bounds import Refusals, one_share
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket
from weft.edge_node.access import acl, users
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.known_passwords import KnownPasswords
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.part import Part
from weft.edge_node.servers.listeners.from_config import admission_limits, listener_settings
from weft.edge_node.servers.listeners.listener import Listener, MakeConnection
from weft.network import http_server
from weft.network.admission import Admission
from weft.network.reload import Reloads, Watched
from weft.network.settings import AdmissionLimits

log = logging.getLogger(__name__)

FILES_RESERVED = 128
"""File descriptors reserved for the log, links and threads."""
HALF_OPEN_PART = 8
"""Divisor for the share of connections that may be half open, where the process may not open enough files."""


class Listeners:
    """All listeners of a node. ``open`` and ``close`` once each, on the event loop's thread."""

    def __init__(
        self, config: EdgeConfig, counters: Counters, listener_counters: ListenerCounters, refusals: Refusals
    ) -> None:
        """Read users and access rules; blocks.

        Raises:
            OSError: a file cannot be read.
            UsersUnusable, AclUnusable: a file is not valid.
        """
        self._config = config
        auth = config.auth
        self.accounts = Accounts(
            None if auth.users_file is None else users.read(auth.users_file),
            None if auth.acl_file is None else acl.read(auth.acl_file),
            counters=listener_counters,
            waiting_max=config.limits.authentications,
            waiting_per_address_max=one_share(config.limits.authentications_per_address, config.limits.authentications),
            known=KnownPasswords(config.data_dir if auth.remember_passwords else None, refusals.clock),
            refusals=refusals,
            clock=refusals.clock,
        )
        pages = config.limits.http_connections + http_server.BACKLOG
        self._admission = Admission(with_files_for(admission_limits(config), pages), counters, listener_counters)
        self._listeners: list[Listener] = []
        self._reloads = Reloads(listener_counters)
        self.is_open = False
        """True while all listeners accept."""

    @property
    def addresses(self) -> dict[str, Address | UnixSocket]:
        """Return the address of each listener by its name."""
        return {listener.name: listener.bound for listener in self._listeners}

    @property
    def certificate_ends(self) -> dict[str, datetime]:
        """Return the end of each listener's certificate in use by the listener's name."""
        return {listener.name: listener.expires for listener in self._listeners if listener.expires is not None}

    @property
    def watched(self) -> list[str]:
        """Return the names of files that are read again: ``users``, ``access rules``, ``certificates of listener
        mqtts``."""
        return self._reloads.watched

    async def open(self, make_connections: Mapping[str, MakeConnection]) -> None:
        """Listen everywhere, and watch the files. Connections wait in the kernel until ``accept``.

        Args:
            make_connections: protocol -> factory of its listeners' connections.

        Raises:
            OSError: an address cannot be bound, or TLS files cannot be used; nothing listens then.
        """
        try:
            for settings in listener_settings(self._config):
                listener = Listener(make_connections[settings.protocol], settings, self._admission, self.accounts)
                await listener.start()
                self._listeners.append(listener)
                if listener.tls_files:
                    what = f"certificates of listener {listener.name}"
                    self._reloads.add(Watched(what, listener.tls_files, listener.read_tls, listener.use_tls))
        except OSError:
            await self.close()
            raise
        self._watch_accounts()

    def accept(self) -> None:
        """Accept connections everywhere from now on."""
        for listener in self._listeners:
            listener.accept()
        self.is_open = True

    async def check_files(self, *, all_of_them: bool = False) -> None:
        """Read files again that have changed, or all of them. A file that cannot be used is reported, and ignored."""
        await self._reloads.check(all_of_them=all_of_them)

    async def save_passwords(self) -> None:
        """Write the new hashes of correct passwords, for the next start."""
        await self.accounts.known.save()

    def stop(self) -> None:
        """Stop accepting. Connections stay until their protocol closes them."""
        self.is_open = False
        for listener in self._listeners:
            listener.stop()

    async def close(self) -> None:
        """End the remaining parts of connections, once their protocol has closed them."""
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._admission.close()
        self.accounts.close()
        await self.accounts.known.save(at_end=True)

    def _watch_accounts(self) -> None:
        accounts, auth = self.accounts, self._config.auth
        if auth.users_file is not None:
            path = auth.users_file
            self._reloads.add(
                Watched("users", [path], lambda: users.read(path), lambda names: accounts.replace(names=names))
            )
        if auth.acl_file is not None:
            rules = auth.acl_file
            self._reloads.add(
                Watched("access rules", [rules], lambda: acl.read(rules), lambda found: accounts.replace(acl=found))
            )


def with_files_for(limits: AdmissionLimits, other_connections: int = 0) -> AdmissionLimits:
    """Return the limits, with connections reduced to the number for which the process may open files.

    The soft limit is raised to the hard one first: systemd's 1,024 is meant for programs that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections, half_open = limits.connections_max, limits.half_open_max
    reserved = FILES_RESERVED + other_connections
    wanted = connections + half_open + reserved
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return limits
    possible = max(soft - reserved, 2)
    half_open = min(half_open, max(possible // HALF_OPEN_PART, possible - connections, 1))
    connections = min(connections, possible - half_open)
    log.warning(
        "this process may have %d files open, so it takes %d connections and not the %d of limits.connections, and %d "
        "half open. Raise its limit (systemd: LimitNOFILE)", soft, connections, limits.connections_max, half_open,
    )  # fmt: skip
    return dataclasses.replace(limits, connections_max=connections, half_open_max=half_open)


class Doors(Part):
    """The listeners as a part of the node: the last to start, and the first to end, among the parts that clients
    reach."""

    name = "listeners"

    def __init__(self, listeners: Listeners, counters: ListenerCounters) -> None:
        self._listeners = listeners
        self.counters = counters

    def samples(self) -> Iterator[Sample]:
        """Yield the ends of the listeners' certificates."""
        for name, end in self._listeners.certificate_ends.items():
            yield Sample("weft_edge_listener_certificate_expires_timestamp_seconds", end.timestamp(), (name,))

    def start(self) -> None:
        """Accept connections everywhere."""
        self._listeners.accept()

    async def close(self) -> None:
        """Stop accepting."""
        self._listeners.stop()

"""The doctor of an edge: what is looked at, measured and called, line by line. Harmless beside the running node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from weft.config.machine import Verdict, act, good, unknown
from weft.config.units import approximate_duration
from weft.edge_node.links.links import link_settings

# The runner's package imports a lighter aiohttp than anyone else does: it comes before.
from weft.replication.runner import connect  # isort: skip
from weft.config.links import Link
from weft.network.reload import read_token
from weft.network.tls import TlsUnusable
from weft.protocols.lane import NodeName
from weft.protocols.link import PROTOCOL_VERSION
from weft.replication.events import LinkStatus
from weft.replication.runner.settings import LinkTrust, ProxyUnusable

import aiohttp  # isort: skip
import os
import resource
import shutil
import struct
from collections.abc import Container
from datetime import UTC, datetime

import msgspec

from weft.config.errors import Finding, KeyPath
from weft.config.machine import of_ports, of_settings
from weft.config.models import EdgeConfig
from weft.config.units import approximate_size, format_size
from weft.edge_node.check.data_directory import copies_in
from weft.edge_node.check.sources import PORTS
from weft.edge_node.control.client import ControlFailed, LinksRequest, ask_links, socket_path
from weft.edge_node.inspect.view import is_locked
from weft.edge_node.preflight import EdgeFindings, look, ports
from weft.edge_node.servers.listeners.listeners import FILES_RESERVED
from weft.storage.host import clock_verdict, disk_speed, disk_wear

# Calls to each URL of a link: its name, connection, certificate and answer, the hub's clock, its release, and what it
# says of the link's token.

ANSWER_S_MAX = 10.0
BODY_BYTES_MAX = 2048
URLS_MAX = 16
"""URLs of a link that are called; a link with more has its first ones called."""
CLOCK_S_MAX = 5.0
"""Difference to the hub's clock that is no finding: its answer has whole seconds, and took some time."""
_READY_PATH = "/readyz"
_RIGHTS_PATH = "/v1/whoami"
_WHY_MAX = 200
"""Characters of a hub's reason that a line repeats."""


class HubAnswer(NamedTuple):
    """Answer of a hub to a probe."""

    status: int
    body: str
    seconds: float
    ahead_s: float | None
    """Seconds by which this machine's clock is ahead of the hub's; None if the answer has no time."""
    rights_status: int | None = None
    """Status of its answer about the token; None if it was not asked."""
    rights: bytes = b""

    def of_token(self) -> TokenFacts | None:
        """Return what the hub says of the token, and of itself; None if it is something else."""
        try:
            return msgspec.json.decode(self.rights, type=TokenFacts) if self.rights_status == 200 else None
        except msgspec.MsgspecError:
            return None


class TokenFacts(msgspec.Struct, frozen=True):
    """The part of the answer of ``/v1/whoami`` that an edge reads."""

    scope: str
    tenant: str | None = None
    edge: str | None = None
    software: str = ""
    """Release of the hub; empty if it does not say."""
    link_protocol: int = 0


class HubCalls:
    """Calls to the hubs of one link.

    Args:
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
        node: name of this edge.
        software: release of this node.
        patience_s: for each URL; all are called at once.
    """

    def __init__(
        self,
        name: str,
        link: Link,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        node: NodeName,
        software: str,
        patience_s: float = ANSWER_S_MAX,
    ) -> None:
        self._check = f"link {name}"
        self._link, self._node, self._software = link, node, software
        self._urls = list(dict.fromkeys(link.to))[:URLS_MAX]
        settings = link_settings(link)
        self._proxy = settings.proxy
        self._trust = LinkTrust(settings.tls, LinkStatus(name))
        self._clock, self._wall_clock = clock, wall_clock
        self._patience_s = patience_s

    def verdicts(self) -> list[Verdict]:
        """Return the lines about the link's URLs, and about the clock. Blocks."""
        return asyncio.run(self._all())

    async def _all(self) -> list[Verdict]:
        found = await asyncio.gather(*map(self._call, self._urls))
        return [verdict for each in found for verdict in each]

    async def _call(self, url: str) -> list[Verdict]:
        try:
            async with asyncio.timeout(self._patience_s):
                if self._proxy.url is None and (problem := await _unresolved(url)):
                    return [act(self._check, f"{url}: {problem}")]
                answer = await self._ask(url)
        except TimeoutError:
            says = f"{url}: no answer within {self._patience_s:.3g} s. Check that firewalls let this port through"
            return [act(self._check, says)]
        except (ProxyUnusable, TlsUnusable) as error:
            return [act(self._check, str(error))]
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return [act(self._check, connect.no_connection(url, error).reason)]
        findings = [_of_answer(self._check, url, answer), _of_clock(url, answer.ahead_s)]
        if answer.rights_status is not None:
            findings += [*self._of_token(url, answer), self._of_versions(url, answer)]
        return findings

    async def _ask(self, url: str) -> HubAnswer:
        """Ask as a link would: with its certificates, by its proxy, without redirects.

        Whether the hub takes work needs no token. A hub that does is then asked what the link's token opens.
        """
        headers = await asyncio.to_thread(self._proxy.headers)
        tls = await self._trust.context(url)
        begun = self._clock()
        async with aiohttp.ClientSession(trust_env=True) as session:

            @contextlib.asynccontextmanager
            async def asked(path: str, **more: str) -> AsyncIterator[aiohttp.ClientResponse]:
                async with session.get(
                    url.rstrip("/") + path,
                    headers=more,
                    ssl=tls,
                    allow_redirects=False,
                    proxy=self._proxy.url,
                    proxy_headers=headers,
                ) as answer:
                    yield answer

            async with asked(_READY_PATH) as answer:
                body = await answer.content.read(BODY_BYTES_MAX)
            seconds, ahead_s = self._clock() - begun, _ahead(answer.headers.get("Date"), self._wall_clock())
            found = HubAnswer(answer.status, body.decode("utf-8", "replace").strip(), seconds, ahead_s)
            if found.status != 200:
                return found
            async with asked(_RIGHTS_PATH, **await asyncio.to_thread(self._bearer)) as answer:
                return found._replace(rights_status=answer.status, rights=await answer.content.read(BODY_BYTES_MAX))

    def _bearer(self) -> dict[str, str]:
        """Return the header with the link's token. One that cannot be read is a finding of its own."""
        with contextlib.suppress(OSError, ValueError):
            if self._link.token_file is not None:
                return {"Authorization": f"Bearer {read_token(self._link.token_file)}"}
        return {}

    def _of_token(self, url: str, answer: HubAnswer) -> Iterator[Verdict]:
        link, facts = self._link, answer.of_token()
        if answer.rights_status == 401 and link.token_file is not None:
            why = f"{url} rejects the token of {link.token_file}: it was removed, has ended, or is another hub's"
            yield act(self._check, f"{why}. `weft hub token pair` at the hub shows a code for another one")
        elif answer.rights_status == 401 and link.certificate is None:
            advice = "`weft hub token pair` at the hub shows a code for one, which `weft edge pair` takes"
            yield act(self._check, f"{url} wants a token, and the link has no `token_file`. {advice}")
        elif facts is not None and facts.edge is not None and (facts.tenant, facts.edge) != self._node:
            theirs = NodeName(facts.tenant or "default", facts.edge)
            advice = "Name the node as the token does, or get a token of its own (`weft hub token pair`)"
            yield act(
                self._check, f"the token of {link.token_file} is for {theirs}, and this is {self._node}. {advice}"
            )

    def _of_versions(self, url: str, answer: HubAnswer) -> Verdict:
        facts = answer.of_token()
        if facts is None or not facts.link_protocol:
            return unknown("versions", f"this is {self._software}; {url} does not report its release")
        theirs = f"{url} runs {facts.software}"
        if facts.link_protocol == PROTOCOL_VERSION:
            return good("versions", f"this is {self._software}, {theirs}, and they fit")
        spoken = f"link protocol {facts.link_protocol}, and this {self._software} {PROTOCOL_VERSION}"
        if facts.link_protocol > PROTOCOL_VERSION:
            return act("versions", f"{theirs}, which is too new for this node: it speaks {spoken}. Upgrade the node")
        return act("versions", f"{theirs}, which is too old for this node: it speaks {spoken}. Upgrade the hub")


async def _unresolved(url: str) -> str | None:
    """Return why the hub's name has no address; None if it has one."""
    host = urlsplit(url).hostname or ""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        said = (error.strerror or str(error)).lower()
        return f"the name {host} cannot be resolved ({said}). Check it, and the machine's DNS: `getent hosts {host}`"
    return None


def _ahead(date: str | None, now: float) -> float | None:
    try:
        return None if date is None else now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _of_answer(check: str, url: str, answer: HubAnswer) -> Verdict:
    match answer.status:
        case 200:
            return good(check, f"{url} answers in {answer.seconds * 1000:.0f} ms, and is ready")
        case 503:
            why = answer.body.splitlines()[0][:_WHY_MAX] if answer.body else "no reason given"
            return act(check, f"{url} answers, and is not ready: {why}. Look at the hub: `weft hub status`")
        case status if 300 <= status < 400:
            return act(check, f"{url} redirects ({status}), and links follow no redirects. Write the hub's URL in `to`")
    return act(check, f"{url} answers {answer.status}: not a hub. Check host, port and path in `to`")


def _of_clock(url: str, ahead_s: float | None) -> Verdict:
    if ahead_s is None:
        return unknown("clock", f"{url} sends no time")
    if abs(ahead_s) <= CLOCK_S_MAX:
        return good("clock", f"it is within {CLOCK_S_MAX:.0f} s of that of {url}")
    which = "ahead of" if ahead_s > 0 else "behind"
    away = approximate_duration(abs(ahead_s))
    return act(
        "clock", f"it is {away} {which} that of {url}. Set it, and run a time service: `timedatectl set-ntp true`"
    )


# The number of files that the node may open, beside what its limits of connections need.

_CHECK = "open files"
_PEER = struct.Struct("3i")
_LINE = "Max open files"
_ADVICE = "Raise the limit (systemd: `LimitNOFILE`), or lower `limits.connections`"


def open_files(config: EdgeConfig, *, is_running: bool) -> Verdict:
    """Return the line about open files: of the running node, or of one that this user would start here."""
    wanted = config.limits.connections + config.limits.half_open + FILES_RESERVED
    if is_running:
        process = _node_of(config.data_dir)
        limit = _limit_of(process) if process else None
        if limit is None:
            return unknown(_CHECK, "the node runs, and its limit cannot be read from here")
        whose = "the node"
    else:
        # A node raises its own limit up to the hard one.
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = wanted if limit == resource.RLIM_INFINITY else limit
        whose = "a node that is started here"
    if limit < wanted:
        takes = max(limit - FILES_RESERVED, 2)
        return act(_CHECK, f"{whose} may open {limit:,}, and so accepts about {takes:,} connections. {_ADVICE}")
    return good(_CHECK, f"{whose} may open {limit:,}; its limits of connections need {wanted:,} at most")


def _node_of(directory: str) -> int | None:
    """Return the process that listens at the control socket of a node; None if that is not known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(1.0)
        try:
            link.connect(socket_path(directory))
            process, _, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        except OSError:
            return None
    # 0 is a process of another container.
    return process or None


def _limit_of(process: int) -> int | None:
    try:
        with open(f"/proc/{process}/limits", encoding="ascii") as file:
            (line,) = [line for line in file if line.startswith(_LINE)]
        return int(line.removeprefix(_LINE).split()[0])
    except (OSError, ValueError):
        return None


# The way to each source.

SOURCE_S_MAX = 5.0
"""Longest wait for a broker, server or line of devices to take a connection."""
_MODBUS_PORT = 502


def of_sources(config: EdgeConfig, clock: Callable[[], float], *, is_running: bool) -> Iterator[Verdict]:
    """Yield whether each source can be reached from here: what listens there is not asked for anything. Blocks."""
    for name, source in config.sources.items():
        check = f"source {name}"
        for url in source.urls[:URLS_MAX]:
            parts = urlsplit(url)
            if source.modbus is not None and is_running:
                says = f"the running node has {url}, which may take one connection. Look at `weft edge status`"
                yield unknown(check, says)
            elif parts.hostname is None:
                yield _of_serial_port(check, parts.path)
            else:
                yield _of_server(
                    check, url, (parts.hostname, parts.port or PORTS.get(parts.scheme, _MODBUS_PORT)), clock
                )


def _of_server(check: str, url: str, address: tuple[str, int], clock: Callable[[], float]) -> Verdict:
    begun = clock()
    try:
        socket.create_connection(address, SOURCE_S_MAX).close()
    except socket.gaierror:
        advice = f"Check it, and the machine's DNS: `getent hosts {address[0]}`"
        return act(check, f"{url}: the name {address[0]} cannot be resolved. {advice}")
    except TimeoutError:
        says = (
            f"{url}: no answer within {SOURCE_S_MAX:g} s. Check the address, and that firewalls let this port through"
        )
        return act(check, says)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return act(check, f"{url}: {why}. Check that it runs, and that it listens at port {address[1]}")
    return good(check, f"{url} takes connections, in {(clock() - begun) * 1000:.0f} ms")


def _of_serial_port(check: str, port: str) -> Verdict:
    if not os.path.exists(port):
        return act(check, f"there is no {port}. Is the adapter plugged in? `ls /dev/serial/by-id` has those that are")
    if not os.access(port, os.R_OK | os.W_OK):
        return act(check, f"this user may not open {port}. Add the node's user to the group of the port (`dialout`)")
    return good(check, f"{port} exists, and this user may open it")


_BUDGET: KeyPath = ("disk", "budget")


def examine(
    config: EdgeConfig,
    written: Container[KeyPath],
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    *,
    software: str,
) -> Iterator[Verdict]:
    """Yield the lines, each when it is known. Blocks; each step has a bound of some seconds.

    Args:
        written: settings in the file.
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
        software: release that the node is, or will be when it starts.
    """
    is_running = bool(is_locked(config.data_dir))
    found = look(config, written, datetime.fromtimestamp(wall_clock(), UTC))
    yield from of_settings([each for each in _all(found) if each.path != _BUDGET], found.certificates)
    yield clock_verdict()
    yield _space(config, found)
    yield disk_speed(config.data_dir, clock)
    yield disk_wear(config.data_dir)
    yield open_files(config, is_running=is_running)
    yield from of_ports(*ports(config))
    if config.pair is None and (left := copies_in(config.data_dir)):
        yield act(
            "pair",
            f"{config.data_dir} has copies of other nodes' logs, and `pair` is not set: {', '.join(left)}. Set it "
            "again and run `weft edge take-over`, or delete them if hubs have their records",
        )
    yield from of_sources(config, clock, is_running=is_running)
    if is_running:
        yield from _links_of_node(config)
    for name, link in config.links.items():
        node = NodeName(config.tenant, config.node)
        yield from HubCalls(name, link, clock, wall_clock, node=node, software=software).verdicts()


def _space(config: EdgeConfig, found: EdgeFindings) -> Verdict:
    for each in _all(found):
        if each.path == _BUDGET:
            return act("disk space", each.message)
    if not os.path.isdir(config.data_dir):
        return unknown("disk space", f"{config.data_dir} does not exist yet. The first start of the node creates it")
    free = approximate_size(shutil.disk_usage(config.data_dir).free)
    return good("disk space", f"{free} is free beside the log; the budget is {format_size(config.disk.budget_bytes)}")


def _links_of_node(config: EdgeConfig) -> Iterator[Verdict]:
    """Yield what the running node says of its links, which also knows whether the hub takes its token."""
    try:
        links = ask_links(config.data_dir, LinksRequest("status"))
    except ControlFailed as error:
        yield unknown("links of the node", str(error))
        return
    for name, facts in links.items():
        if facts.get("state") == "connected":
            yield good(f"link {name}", f"the node is connected to {facts.get('url')}")
        else:
            yield act(f"link {name}", f"the node is not connected: {facts.get('last_error') or facts.get('state')}")


def _all(found: EdgeFindings) -> list[Finding]:
    return [*found.needed, *found.unfit, *found.doubtful]

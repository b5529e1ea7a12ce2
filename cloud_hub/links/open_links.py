"""The links of one hub process: their maximum for each token and in all, and their end when their token is revoked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.edge_reports import EdgeReport
from weft.cloud_hub.api.edges import Linked
from weft.cloud_hub.api.identity.certificates import CertificateIdentity
from weft.cloud_hub.api.tokens import TokenIdentity
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.declared.credentials import WITHOUT_TOKEN, Credentials
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.links.link_log import clock_differs
from weft.protocols.lane import NodeName, format_log_id, valid_name
from weft.protocols.link import RefuseCode

_logger = logging.getLogger(__name__)

MOVES_PER_S = 100
"""Maximum number of edges that are sent on in a second: each connects again and opens its lanes elsewhere."""
LOOKED_AT_ONCE = 256
"""Number of links that are looked at without a pause."""
SEND_ON_INTERVAL_S = 5.0
LOOK_INTERVAL_S = 2.0
"""Interval at which open links are checked against tokens that changed in a file or came to their end."""
BOUND = "limits.links_per_token"
TOTAL = "limits.links"
REGION_LINKS_MAX = 256
"""Links of one token of a region, at least: it has one for each of its shards."""
ENDING_MAX = 16
"""Links of one tenant that may be ending for others' sake: the hub has as many beyond its limit, for seconds."""
RELEASE_CHARACTERS_MAX = 64
LEFT_KEPT_MAX = 20_000
"""Maximum number of disconnected edges that a process remembers; the longest disconnected one is dropped first."""


class _Left(NamedTuple):
    """Facts about an edge whose link to this process has ended."""

    release: str
    report: EdgeReport | None
    """The last report, without its functions."""


class OpenLinks:
    """The open links, each with its token.

    If a token has reached its share, its oldest link ends: an edge with an unstable network leaves dead links behind,
    which the hub has not detected yet. If the hub has reached its limit, the tenant with most links makes room for
    others.

    Args:
        links_max: links of all tokens.
        per_token_max: links of one token.
        refusals: counter of the links that ended for a newer one.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(self, links_max: int, per_token_max: int, refusals: Refusals, wall_clock: Callable[[], int]) -> None:
        self._links_max = links_max
        self._per_token_max = per_token_max
        self._refusals = refusals
        self._wall_clock = wall_clock
        self._since: dict[EdgeLink, int] = {}
        self._by_token: dict[TokenIdentity | None, dict[EdgeLink, None]] = {}
        """Links of each token, and of None: those without a token."""
        self._by_holder: dict[object, dict[EdgeLink, None]] = {}
        """Links of each who has tokens: those of an issuer are new each time."""
        self._by_tenant: dict[str, dict[EdgeLink, None]] = {}
        self._left: OrderedDict[NodeName, _Left] = OrderedDict()
        """Edges whose links have ended."""
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[EdgeLink]:
        return iter(self._since)

    def clocks_differ(self) -> int:
        """Return the number of linked edges whose synchronised clocks are a minute or more from this node's."""
        return sum(clock_differs(link.clock_off) for link in self._since)

    def views(self) -> list[View]:
        """Return the links for status pages."""
        return [_view(link, since) for link, since in self._since.items()]

    def by_edge(self, at: str = "") -> dict[NodeName, Linked]:
        """Return the linked edges of this process, whose name is ``at``."""
        return {
            NodeName(hello.tenant, hello.edge): Linked(since, hello.software, link.clock_off, at)
            for link, since in self._since.items()
            if (hello := link.hello) is not None and not link.is_region
        }

    def last_release(self, edge: NodeName) -> str | None:
        """Return the release of an edge whose link has ended since this process started; None if unknown."""
        left = self._left.get(edge)
        return None if left is None else left.release

    def since(self) -> dict[NodeName, int]:
        """Return the linked edges of this process, each with the time of its connection."""
        return {name: link.since for name, link in self.by_edge().items()}

    def reports(self) -> dict[NodeName, EdgeReport]:
        """Return what edges have said of themselves: those that are linked to this process, and those that were."""
        found = {name: left.report for name, left in self._left.items() if left.report is not None}
        for link in self._since:
            if link.told is not None and (hello := link.hello) is not None:
                found[NodeName(hello.tenant, hello.edge)] = link.told
        return found

    def check_room(self, identity: TokenIdentity | None) -> None:
        """Make room for a link, or refuse it.

        Raises:
            ApiError: 503.
        """
        if len(self._since) >= self._links_max:
            self._make_room("" if identity is None else identity.tenant)
        own = None if identity is None else self._by_holder.get(identity.holder)
        if own is None or identity is None:
            return
        most = max(self._per_token_max, REGION_LINKS_MAX) if identity.is_region else self._per_token_max
        if len(own) < most:
            return
        if len(own) >= 2 * most:
            raise ApiError(503, f"{identity.shown} has links that have yet to end", "wait some seconds")
        oldest = next((link for link in own if not link.is_over), None)
        if oldest is not None:
            advice = "if the token belongs to several nodes, give each one of its own"
            message = f"{identity.shown} has {most} links, its limit, and a newer one came"
            self._refusals.note(BOUND, Owner(OwnerKind.EDGE, f"{identity.tenant}/{identity.edge}"), advice)
            oldest.end(RefuseCode.OVERLOADED, message, advice)

    def _make_room(self, tenant: str) -> None:
        """End the oldest link of the tenant that has most, if it has more than this one.

        Raises:
            ApiError: 503: it has not, or enough of its links are ending.
        """
        full = f"the hub has {self._links_max} links, its limit"
        own, heaviest = len(self._by_tenant.get(tenant, ())), tenant
        for each, links in self._by_tenant.items():
            if len(links) > max(own, len(self._by_tenant.get(heaviest, ()))):
                heaviest = each
        advice = "where it is full, the tenant with most links makes room. Raise the setting, or run more nodes"
        self._refusals.note(TOTAL, Owner(OwnerKind.TENANT, heaviest), advice)
        of_heaviest = self._by_tenant.get(heaviest, {})
        oldest = next((link for link in of_heaviest if not link.is_over), None)
        if heaviest == tenant or oldest is None or sum(link.is_over for link in of_heaviest) >= ENDING_MAX:
            raise ApiError(503, full, "connect to another node")
        message = f"{full}, and tenant {heaviest} has most of them"
        oldest.end(RefuseCode.OVERLOADED, message, "connect to another node")

    @contextlib.contextmanager
    def opened(self, link: EdgeLink, identity: TokenIdentity | None) -> Iterator[None]:
        """Register a link while it is open."""
        self._since[link] = self._wall_clock()
        holder = None if identity is None else identity.holder
        self._by_token.setdefault(identity, {})[link] = None
        self._by_holder.setdefault(holder, {})[link] = None
        tenant = "" if identity is None else identity.tenant
        self._by_tenant.setdefault(tenant, {})[link] = None
        try:
            yield
        finally:
            del self._since[link]
            self._keep(link)
            _forget(self._by_token, identity, link)
            _forget(self._by_holder, holder, link)
            _forget(self._by_tenant, tenant, link)

    def _keep(self, link: EdgeLink) -> None:
        hello = link.hello
        if hello is not None and valid_name(hello.tenant) and valid_name(hello.edge):
            edge = NodeName(hello.tenant, hello.edge)
            before = self._left.get(edge)
            told = link.told or (before.report if before is not None else None)
            self._left[edge] = _Left(
                hello.software[:RELEASE_CHARACTERS_MAX], None if told is None else told.without_functions()
            )
            self._left.move_to_end(edge)
            if len(self._left) > LEFT_KEPT_MAX:
                self._left.popitem(last=False)

    def start(self, tokens: Credentials) -> None:
        """Begin to send edges on, and to check whether tokens are still in force."""
        self._tasks = [
            asyncio.create_task(self._send_on(), name="send-on"),
            asyncio.create_task(self._look(tokens), name="open-links"),
        ]

    async def close(self) -> None:
        """Stop both."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(SEND_ON_INTERVAL_S)
            try:
                await self.send_on()
            except Exception:  # without this task, edges would stay where they are
                _logger.exception("edges could not be sent on")

    async def _look(self, tokens: Credentials) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                self.end_revoked(tokens)
            except Exception:  # without this task, links of revoked tokens would stay open
                _logger.exception("links of revoked tokens could not be ended")

    async def send_on(self, within_s: float | None = None) -> None:
        """Send the edges of shards that others own by now to these, some at a time.

        Args:
            within_s: time for all of them; None for as long as it takes.
        """
        sent, links = 0, list(self._since)
        pause_s = 1 / MOVES_PER_S if within_s is None else min(1 / MOVES_PER_S, within_s / max(1, len(links)))
        for at, link in enumerate(links):
            if link.send_on():
                sent += 1
                await asyncio.sleep(pause_s)
            elif at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if sent:
            _logger.info("%d edges were sent on to the owners of their shards", sent)

    def end_revoked(self, tokens: Credentials) -> None:
        """End the links of tokens that are no longer in force, and links without a token if every link needs one."""
        # The certificate of a link is not among the tokens, and its revocation ends the link elsewhere.
        others = [identity for identity in self._by_token if not isinstance(identity, CertificateIdentity)]
        for identity in tokens.revoked(others):
            why = WITHOUT_TOKEN if identity is None else tokens.why_over(identity)
            for link in self._by_token[identity]:
                link.end(RefuseCode.UNAUTHORISED, *why)


def _forget(links: dict[Any, dict[EdgeLink, None]], key: object, link: EdgeLink) -> None:
    del links[key][link]
    if not links[key]:
        del links[key]


def _view(link: EdgeLink, since: int) -> View:
    hello = link.hello
    if hello is None:
        return {"connected_since": moment(since), "edge": None}
    return {
        "connected_since": moment(since),
        "tenant": hello.tenant,
        "edge": hello.edge,
        "log": format_log_id(hello.log_id),
        "epoch": link.epoch,
        "software": hello.software,
        "streams": link.streams,
        "clock_off_seconds": None if link.clock_off is None else link.clock_off / 1e9,
    }

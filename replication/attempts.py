"""Attempts to connect to a hub: outcomes, waits between them, and redirects to another node."""

from __future__ import annotations

import ipaddress
import logging
import random
import re
from collections import deque
from collections.abc import Sequence, Sized
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from weft.protocols.link import RefuseCode
from weft.replication.events import LinkState
from weft.replication.flow_control import LINK_PATH, SenderSettings

# Outcomes of attempts to connect, with the sentences for refusals that every client of a hub may meet.


class ConnectionEnd(NamedTuple):
    """End of a connection."""

    state: LinkState
    reason: str
    code: int = 0
    """Code of the REFUSE, 0 without one."""
    url: str = ""
    """Node named in the hub's REFUSE."""
    is_silent: bool = False
    """True when the node did not answer in time, as one that is gone."""


CHALLENGE_CHARACTERS_MAX = 1024
_REASON = re.compile(r'error_description="([ !#-\[\]-~]{1,500})"')
"""The hub's reason in a header WWW-Authenticate (RFC 6750, section 3)."""
REASON_HEADER = "Weft-Reason"
"""Header of a 503 with the hub's reason: a client of WebSockets sees no body. Other releases leave it out."""
_PLAIN_REASON = re.compile(r"[ -~]{1,500}")
_REFUSED_STATE: dict[int, LinkState] = {
    RefuseCode.IDENTITY_CONFLICT: LinkState.CONFLICT,
    RefuseCode.OVERLOADED: LinkState.WAITING,
    RefuseCode.REDIRECT: LinkState.WAITING,
    RefuseCode.UNAVAILABLE: LinkState.WAITING,
    RefuseCode.CLOSED: LinkState.WAITING,
}


def refused_by_hub(code: int, message: str, advice: str, url: str = "") -> ConnectionEnd:
    """Return the outcome of a REFUSE, or of a lane's LANE_CLOSED that ends the link."""
    return ConnectionEnd(_REFUSED_STATE.get(code, LinkState.REFUSED), f"{message}; {advice}", code, url)


def refused_by_server(
    url: str,
    status: int,
    *,
    has_token: bool,
    has_certificate: bool = False,
    argument: str = "the link's `to`",
    challenge: str | None = None,
    server_reason: str | None = None,
) -> ConnectionEnd:
    """Return the outcome when the server did not answer with a WebSocket.

    Args:
        argument: what named the URL.
        challenge: the header ``WWW-Authenticate`` of the answer, which may have the hub's reason.
        server_reason: the header ``REASON_HEADER``.
    """
    reason = _REASON.search(challenge[:CHALLENGE_CHARACTERS_MAX]) if challenge else None
    # The text comes from a server that is not known yet, and goes into logs and status: only plain characters are
    # passed on.
    said = f": {server_reason}" if server_reason and _PLAIN_REASON.fullmatch(server_reason) else ""
    match status:
        case 401 if not has_token:
            why = "the hub requires a token (401) and the link has none. Set the link's token_file"
        case 401 if reason:
            why = f"the hub refuses the token (401): {reason[1]}"
        case 401:
            why = (
                "the hub does not accept the token (401). It is mistyped, revoked, or another hub's: create one "
                "on this hub"
            )
        case 403 if not has_token and has_certificate:
            why = "the link's certificate names no edge (403). Its common name has to be the edge, or tenant/edge"
        case 403 if not has_token:
            why = (
                "the hub accepts links without token and client certificate only from its own machine, or not (403). "
                "Set the link's token_file (`weft hub token add` makes one), or its certificate and key"
            )
        case 403 if not has_certificate:
            why = (
                "the hub does not accept the token for links, or wants a client certificate as well (403). Create one "
                "on the hub with `--scope edge`, or set the link's certificate and key"
            )
        case 403:
            why = "the hub does not accept the token for links (403). Create one on the hub with `--scope edge`"
        case 404:
            why = f"no hub answers at {LINK_PATH} (404). Check {argument}"
        case 400:
            why = "the server rejects the request (400). Write https:// if the port speaks TLS"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case 503:
            more = said or ". Its log has the reason"
            why = f"the hub accepts no links at the moment (503){more}; the edge tries its other nodes as well"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case _:
            return ConnectionEnd(
                LinkState.WAITING, f"{url}: the server answered with HTTP status {status}. See its log"
            )
    return ConnectionEnd(LinkState.REFUSED, f"{url}: {why}")


# Waits between attempts to connect.


class Backoff:
    """Waits between attempts: doubled per round through the URLs, with full jitter."""

    def __init__(self, urls: Sized, least_s: float, most_s: float, rng: random.Random) -> None:
        """Start without a failure.

        Args:
            urls: the URLs that are tried in turn.
            least_s: shortest wait.
            most_s: longest wait.
        """
        self._urls = len(urls)
        self._least_s = least_s
        self._most_s = most_s
        self._rng = rng
        self.failures = 0

    def reset(self) -> None:
        """Note that the connection was useful: a later failure starts with the shortest wait."""
        self.failures = 0

    def next_wait_s(self) -> float:
        """Count a failure and draw the wait, between ``least_s`` and at most ``most_s``."""
        # All URLs of a link are tried before the wait grows, since another node of the hub may answer at once.
        rounds = min(self.failures // self._urls, 32)
        self.failures += 1
        least, most = self._least_s, self._most_s
        # Random over the whole range: after an outage a fleet comes back spread over time and not all at once.
        return self._rng.uniform(min(least, most), min(most, least * 2 ** (rounds + 1)))


# Hosts to which a link follows redirects: its token goes there.
#
# A hub names the URLs that its nodes wrote into the store. Who can write there can write another URL, so an edge goes
# by its own configuration: to hosts that its operator listed, or near those that the link names itself.

PARENT_LABELS_MIN = 2
"""Number of labels that hosts near each other share at least: ``example.com``."""

INSIDE = (".home.arpa", ".internal", ".local", ".localhost", ".svc")
"""Ends of names that no public server answers for (RFC 6761, 6762 and 8375; ICANN keeps ``internal`` free), and those
of Kubernetes without the cluster's domain."""


class RedirectHosts:
    """The hosts of one link.

    Args:
        urls: of the link.
        patterns: names of hosts, in which ``*`` matches any characters; None for hosts near those of the link's
            URLs. These are the hosts below them and beside them (``b.hubs.example.com`` for ``a.hubs.example.com``),
            and where one of them is in the edge's own network (an address that is not public, a name of one word or
            with an end of ``INSIDE``), any other such host.
    """

    def __init__(self, urls: Sequence[str], patterns: Sequence[str] | None) -> None:
        self._own = {host_of(url) for url in urls}
        self._patterns = None if patterns is None else [each.lower() for each in patterns]
        self._parents = {parent for host in self._own if (parent := _parent(host))}
        self._is_inside = any(map(_is_inside, self._own))

    def __contains__(self, url: str) -> bool:
        """Return whether the link may go to the host of a URL."""
        host = host_of(url)
        if host in self._own:
            return True
        # The operator's list replaces the guess by names altogether.
        if self._patterns is not None:
            return any(fnmatchcase(host, pattern) for pattern in self._patterns)
        if self._is_inside and _is_inside(host):
            return True
        # Neighbours by name: the nodes of a hub usually share a parent domain. A public suffix has one label too few to
        # be a parent here.
        return any(host.endswith(f".{name}") for name in (*self._parents, *filter(_is_name, self._own)))


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, without the dot at its end; the URL itself if it has none."""
    try:
        return (urlsplit(url).hostname or url).removesuffix(".")
    except ValueError:
        return url


def _parent(host: str) -> str | None:
    """Return the domain that hosts beside this one share; None if it is too short to say anything."""
    parent = host.partition(".")[2]
    return parent if _is_name(host) and parent.count(".") + 1 >= PARENT_LABELS_MIN else None


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." in host
    return False


def _is_inside(host: str) -> bool:
    """Return whether only the edge's own network can have a host: an address that is not public, a name of one word or
    with an end of ``INSIDE``."""
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return "." not in host or host.endswith(INSIDE)


# Redirects: the next URL of a link when a hub names another node for its edge.
#
# An edge follows a few redirects, to hosts of the link only (``RedirectHosts``), and never from TLS to plain
# HTTP: its token would cross the network unencrypted. When the named node cannot be reached, the edge goes back to
# the redirecting node and asks to be served there (HELLO.stay). It asks so at once when the named node has just
# fallen silent: the hub needs some time to see that it is gone.

_log = logging.getLogger(__name__)
HOPS_MAX = 3
"""Maximum number of redirects in a row: more mean that two nodes redirect to each other."""
MOVES_S = 60.0
"""Time in which a link follows at most ``HOPS_MAX`` redirects of nodes that had taken it. Owners of a shard change once
in minutes, so more mean that each of two nodes takes the link and names the other."""
UNREACHABLE_MIN_S = 600.0
UNREACHABLE_MAX_S = 6 * 3600.0
"""Longest time for which an unreachable node is not tried again. It begins at ``UNREACHABLE_MIN_S`` and doubles."""
SILENT_S = 30.0
"""The same of a node that was reached before, at first, and of all nodes of a host that fell silent. By then a hub has
given the shards of a dead process to others."""
SILENCES_MAX = 8
"""Number of silences in a row from which on the time of the next one grows no more."""
REMEMBERED_MAX = 64
T = TypeVar("T")


class Target(NamedTuple):
    """A node that a link connects to."""

    url: str
    back: str | None = None
    """The node that redirected to this one."""
    hops: int = 0
    stay_s: float | None = None
    """Time after which the link ends to try the other node again; until then this node must serve it (HELLO.stay). None
    follows redirects."""


class Redirects:
    """The redirects of one link. Times are monotonic seconds.

    Args:
        hosts: where the link may go; None for anywhere.
        name: of the link, for its log.
    """

    def __init__(self, rng: random.Random, hosts: RedirectHosts | None = None, name: str = "") -> None:
        self._rng, self._hosts, self._name = rng, hosts, name
        self._refused: dict[str, None] = {}
        """Hosts that a hub named and the link may not go to."""
        self._unreachable: dict[str, tuple[float, float]] = {}
        """URL -> end of the time in which it is not tried, and length of that time."""
        self._reached: dict[str, None] = {}
        """URLs of nodes that took the link, the last one last."""
        self._silent: dict[str, float] = {}
        """Host -> end of the time in which none of its nodes is tried."""
        self._silences: dict[str, int] = {}
        """URL -> number of attempts in a row in which its node fell silent."""
        self._failed: dict[str, None] = {}
        """The link's own URLs that did not take it since one did."""
        self._moves: deque[float] = deque(maxlen=HOPS_MAX)
        """Times of the last redirects of nodes that had taken the link."""

    def best(self, urls: Sequence[str], now: float) -> str:
        """Return the first of these URLs that has not failed since one took the link, and whose host did not fall
        silent a short time ago; otherwise the first one: a node that was slow may be the only one that is left."""
        sound = (url for url in urls if self._silent.get(_host(url), now) <= now)
        return next((url for url in sound if url not in self._failed), urls[0])

    def beat_timeout(self, target: Target, settings: SenderSettings) -> int:
        """Return the silence, ns, for which the link waits at a node: doubled for each time in a row that the node fell
        silent, up to ``ack_timeout``."""
        # What looks like silence may be a proxy with a slow line behind it, or a host with too much to do. An edge that
        # left again and again would send the same data again and again, and none would arrive.
        return min(settings.beat_timeout << self._silences.get(target.url, 0), settings.ack_timeout)

    def after(self, target: Target, outcome: ConnectionEnd, *, taken: bool, now: float) -> Target | None:
        """Return the node to try at once after an attempt; None if the link should wait and start again at its own
        URLs.

        Args:
            taken: whether the node accepted the link.
        """
        if taken:
            self._unreachable.pop(target.url, None)
            self._silent.pop(_host(target.url), None)
            _keep(self._reached, target.url, None)
            self._failed.clear()
        elif target.back is None:
            _keep(self._failed, target.url, None)
        silences = self._silences.pop(target.url, 0) if taken else self._silences.get(target.url, 0)
        if outcome.is_silent:
            if taken:  # a node that does not answer at all says nothing about how long its beats take
                _keep(self._silences, target.url, min(silences + 1, SILENCES_MAX))
            # This may also be the edge's own network, so the time does not grow.
            _keep(self._silent, _host(target.url), now + SILENT_S)
        if taken:
            if outcome.code == RefuseCode.REDIRECT:  # the shard has another owner by now
                return self._move(target, outcome.url, now)
            return None
        if outcome.code == RefuseCode.REDIRECT:
            return self._follow(target, outcome.url, now)
        if target.back is None or outcome.code == RefuseCode.IDENTITY_CONFLICT:
            return None
        return Target(target.back, stay_s=self._note_unreachable(target.url, now))

    def _move(self, target: Target, url: str, now: float) -> Target | None:
        """Follow a redirect of a node that had taken the link. The hops count from this node on."""
        # Two nodes that each take the other for the shard's owner would pass the link to and fro for as long as they
        # disagree.
        if len(self._moves) == HOPS_MAX and now - self._moves[0] < MOVES_S:
            # Each node takes the link, so the hops alone would never end. This one is asked to keep it; if it names
            # another node even so, the link waits longer from time to time.
            return None if target.stay_s is not None else Target(target.url, stay_s=UNREACHABLE_MIN_S)
        self._moves.append(now)
        return self._follow(Target(target.url), url, now)

    def _follow(self, target: Target, url: str, now: float) -> Target | None:
        if target.stay_s is not None:
            return None  # it does not serve the edge, although HELLO.stay asked for it
        until = max(self._unreachable.get(url, (now, 0.0))[0], self._silent.get(_host(url), now))
        if until > now:
            # The named node was unreachable a short time ago: ask the redirecting one to serve the edge until the next
            # try.
            return Target(target.url, stay_s=(until - now) * self._rng.uniform(1, 1.5))
        # Served where it is, at the price of a shard that is loaded twice, rather than not at all.
        if target.hops >= HOPS_MAX or not _may_follow(target.url, url) or not self._may_go(target.url, url):
            return Target(target.url, stay_s=UNREACHABLE_MAX_S)
        return Target(url, target.url, target.hops + 1)

    def _may_go(self, from_url: str, url: str) -> bool:
        if self._hosts is None or url in self._hosts:
            return True
        host = _host(url)
        if host not in self._refused:
            _log.warning(
                "link %s: %s names %.200r for this node, which the link may not go to: it stays. If that is a node of "
                "the hub, add it to `redirects` of the link",
                self._name,
                from_url,
                host,
            )
        _keep(self._refused, host, None)
        return False

    def _note_unreachable(self, url: str, now: float) -> float:
        _, before = self._unreachable.get(url, (0.0, 0.0))
        # A node that was reached before is restarting, as a rule, and is tried again soon. One that never was is behind
        # a firewall.
        wait = min(max(2 * before, SILENT_S if url in self._reached else UNREACHABLE_MIN_S), UNREACHABLE_MAX_S)
        _keep(self._unreachable, url, (now + wait, wait))
        # Edges of one node come back at different times.
        return wait * self._rng.uniform(1, 1.5)


def _keep(known: dict[str, T], url: str, value: T) -> None:
    """Set an entry and make it the last one; the first ones leave when there are too many."""
    known.pop(url, None)
    known[url] = value
    if len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url


def _may_follow(from_url: str, url: str) -> bool:
    try:
        here, there = urlsplit(from_url), urlsplit(url)
        named = bool(there.hostname) and there.port != 0
    except ValueError:
        return False
    # Never from TLS to plain text: the token would be readable on the way.
    return named and there.scheme in ("http", "https") and (here.scheme, there.scheme) != ("https", "http")

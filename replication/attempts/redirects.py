"""Redirects: the next URL of a link when a hub names another node for its edge.

An edge follows a few redirects, to hosts of the link only (``redirect_hosts.py``), and never from TLS to plain HTTP:
its token would cross the network unencrypted. When the named node cannot be reached, the edge goes back to the
redirecting node and asks to be served there (HELLO.stay). It asks so at once when the named node has just fallen
silent: the hub needs some time to see that it is gone.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from weft.protocols.link import RefuseCode
from weft.replication.attempts.outcome import ConnectionEnd
from weft.replication.attempts.redirect_hosts import RedirectHosts

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
        self._failed: dict[str, None] = {}
        """The link's own URLs that did not take it since one did."""
        self._moves: deque[float] = deque(maxlen=HOPS_MAX)
        """Times of the last redirects of nodes that had taken the link."""

    def best(self, urls: Sequence[str], now: float) -> str:
        """Return the first of these URLs that has not failed since one took the link, and whose host did not fall
        silent a short time ago; otherwise the first one: a node that was slow may be the only one that is left."""
        sound = (url for url in urls if self._silent.get(_host(url), now) <= now)
        return next((url for url in sound if url not in self._failed), urls[0])

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
        if outcome.is_silent:
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
                "the hub, add it to `redirects` of the link", self._name, from_url, host,
            )  # fmt: skip
        _keep(self._refused, host, None)
        return False

    def _note_unreachable(self, url: str, now: float) -> float:
        _, before = self._unreachable.get(url, (0.0, 0.0))
        wait = min(max(2 * before, SILENT_S if url in self._reached else UNREACHABLE_MIN_S), UNREACHABLE_MAX_S)
        _keep(self._unreachable, url, (now + wait, wait))
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
    return named and there.scheme in ("http", "https") and (here.scheme, there.scheme) != ("https", "http")

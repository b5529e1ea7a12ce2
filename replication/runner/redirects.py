"""Redirects: the next URL of a link when a hub names another node for its edge.

An edge follows a few redirects, never from TLS to plain HTTP: its token would cross the network unencrypted. When the
named node cannot be reached, the edge goes back to the redirecting node and asks to be served there (HELLO.stay).
"""

from __future__ import annotations

import random
from typing import NamedTuple
from urllib.parse import urlsplit

from weft.protocols.link import RefuseCode
from weft.replication.runner.connection import ConnectionEnd

HOPS_MAX = 3
"""Maximum number of redirects in a row: more mean that two nodes redirect to each other."""
UNREACHABLE_MIN_S = 600.0
UNREACHABLE_MAX_S = 6 * 3600.0
"""Longest time for which an unreachable node is not tried again. It begins at ``UNREACHABLE_MIN_S`` and doubles."""
REMEMBERED_MAX = 64


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
    """The redirects of one link. Times are monotonic seconds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._unreachable: dict[str, tuple[float, float]] = {}
        """URL -> end of the time in which it is not tried, and length of that time."""

    def after(self, target: Target, outcome: ConnectionEnd, *, taken: bool, now: float) -> Target | None:
        """Return the node to try at once after an attempt; None if the link should wait and start again at its own
        URLs.

        Args:
            taken: whether the node accepted the link.
        """
        if taken:
            self._unreachable.pop(target.url, None)
            if outcome.code == RefuseCode.REDIRECT:  # the shard has another owner by now
                return self._follow(Target(target.url), outcome.url, now)
            return None
        if outcome.code == RefuseCode.REDIRECT:
            return self._follow(target, outcome.url, now)
        if target.back is None or outcome.code == RefuseCode.IDENTITY_CONFLICT:
            return None
        return Target(target.back, stay_s=self._note_unreachable(target.url, now))

    def _follow(self, target: Target, url: str, now: float) -> Target | None:
        if target.stay_s is not None:
            return None  # it does not serve the edge, although HELLO.stay asked for it
        until, _ = self._unreachable.get(url, (now, 0.0))
        if until > now:
            # The named node was unreachable a short time ago: ask the redirecting one to serve the edge until the next
            # try.
            return Target(target.url, stay_s=until - now)
        if target.hops >= HOPS_MAX or not _may_follow(target.url, url):
            return Target(target.url, stay_s=UNREACHABLE_MAX_S)
        return Target(url, target.url, target.hops + 1)

    def _note_unreachable(self, url: str, now: float) -> float:
        _, before = self._unreachable.pop(url, (0.0, 0.0))
        wait = min(max(2 * before, UNREACHABLE_MIN_S), UNREACHABLE_MAX_S)
        self._unreachable[url] = now + wait, wait
        if len(self._unreachable) > REMEMBERED_MAX:
            del self._unreachable[next(iter(self._unreachable))]
        return wait * self._rng.uniform(1, 1.5)


def _may_follow(from_url: str, url: str) -> bool:
    try:
        here, there = urlsplit(from_url), urlsplit(url)
        named = bool(there.hostname) and there.port != 0
    except ValueError:
        return False
    return named and there.scheme in ("http", "https") and (here.scheme, there.scheme) != ("https", "http")

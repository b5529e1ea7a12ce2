"""Hosts to which a link follows redirects: its token goes there.

A hub names the URLs that its nodes wrote into the store. Who can write there can write another URL, so an edge goes by
its own configuration: to hosts that its operator listed, or near those that the link names itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

PARENT_LABELS_MIN = 2
"""Number of labels that hosts near each other share at least: ``example.com``."""

INSIDE = (".home.arpa", ".internal", ".local", ".localhost", ".svc")
"""Ends of names that no public server answers for (RFC 6761, 6762 and 8375; ICANN keeps ``internal`` free), and those
of Kubernetes without the cluster's domain."""


class RedirectHosts:
    """The hosts of one link.

    Args:
        urls: of the link.
        patterns: names of hosts, in which ``*`` stands for any characters; None for hosts near those of the link's
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
        if self._patterns is not None:
            return any(fnmatchcase(host, pattern) for pattern in self._patterns)
        if self._is_inside and _is_inside(host):
            return True
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

"""Requests that web pages may send: a browser runs pages of strangers on the machine that a loopback listener trusts.

A page of a stranger can have its own host name resolved to 127.0.0.1 (DNS rebinding). For the browser, page and
listener are then of one origin. Such a request is recognised by its Host header, which has the stranger's name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from typing import NamedTuple

MISDIRECTED_REQUEST = 421
"""Status of a request under a name that is not the server's (RFC 9110 section 15.5.20)."""
PORT_MAX = 65_535
_PORTS = {"http": 80, "https": 443}
_ORIGIN = re.compile(r"(https?)://(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{1,5}))?/?", re.ASCII | re.IGNORECASE)
"""An origin, or a host with a scheme before it. Browsers write other characters of names in Punycode."""


class Origin(NamedTuple):
    """Origin of a page (RFC 6454): pages of the same origin may do everything with each other."""

    scheme: str
    host: str
    port: int


def parse_origin(text: str) -> Origin | None:
    """Return the origin in an Origin header; None for ``null``, and for schemes other than http and https."""
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme, address, name, port = match.groups()
    number = int(port) if port else _PORTS[scheme.lower()]
    return Origin(scheme.lower(), (address or name).lower().removesuffix("."), number) if number <= PORT_MAX else None


def served_origin(scheme: str, hosts: Sequence[str]) -> Origin | None:
    """Return the origin of a request's target, given its Host headers; None unless there is exactly one valid one."""
    return parse_origin(f"{scheme}://{hosts[0]}") if len(hosts) == 1 and "/" not in hosts[0] else None


def is_own_name(host: str, names: Collection[str] = ()) -> bool:
    """Return whether a host is an address, ``localhost`` or one of the names: no stranger's name can be any of them."""
    if host == "localhost" or host in names:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_misdirected(hosts: Sequence[str], names: Collection[str]) -> bool:
    """Return whether a request was sent to the name of another server.

    Args:
        hosts: the Host headers. Without one, the request is not from a browser.
        names: the server's names, lower case, beside its addresses and ``localhost``.
    """
    target = served_origin("http", hosts)
    return bool(hosts) and (target is None or not is_own_name(target.host, names))


def misdirected_advice(setting: str) -> str:
    """Return what to do about a misdirected request, one sentence.

    Args:
        setting: the setting that lists the names of the server.
    """
    return f"use an address or `localhost` in the URL, or add the name in it to `{setting}`"

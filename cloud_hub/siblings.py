"""Processes of one node: which one has a shard, and where the others answer."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from weft.cloud_hub.api.views import View
from weft.cloud_hub.settings import HubSettings


def elsewhere(settings: HubSettings, host_header: str) -> Callable[[int], str | None]:
    """Return the URL, by shard, of the process that an edge should go to; None where this one has the shard.

    Args:
        host_header: of the edge's request: processes without ``advertise`` are at the name that it used.
    """
    host = _host_of(host_header)

    def url(shard: int) -> str | None:
        owner = shard % settings.processes
        if owner == settings.process:
            return None
        if settings.advertise:
            return settings.advertise[owner]
        return host and f"http://{host}:{_port(settings, owner)}"

    return url


def sibling_views(settings: HubSettings) -> list[View]:
    """Return number, port and advertised URL of the node's other processes."""
    return [
        {
            "process": number,
            "port": _port(settings, number),
            "url": settings.advertise[number] if settings.advertise else None,
        }
        for number in range(settings.processes)
        if number != settings.process
    ]


def _port(settings: HubSettings, process: int) -> int:
    return settings.port - settings.process + process


def _host_of(header: str) -> str | None:
    """Return the host of a Host header, in brackets when it is an IPv6 address; None when there is none."""
    try:
        host = urlsplit(f"//{header}").hostname
    except ValueError:
        return None
    return f"[{host}]" if host and ":" in host else host or None

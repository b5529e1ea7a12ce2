"""Processes of one node: the owner of each shard, and the addresses of the others."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from weft.cloud_hub.api.views import View
from weft.cloud_hub.settings import HubSettings


def elsewhere(settings: HubSettings, host_header: str) -> Callable[[int], str | None]:
    """Return a function from shard to the URL of its process; None if this process has the shard.

    Args:
        host_header: Host header of the edge's request: processes without ``advertise`` have the same host.
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
    """Return the host of a Host header, in brackets if it is an IPv6 address; None without one."""
    try:
        host = urlsplit(f"//{header}").hostname
    except ValueError:
        return None
    return f"[{host}]" if host and ":" in host else host or None

"""Records of links that were refused because another node has their identity, so that completeness waits."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp import web

from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.shard.conflicts import note_conflicts


async def note_refused(
    link: EdgeLink, response: web.StreamResponse, wall_clock: Callable[[], int], random_bits: Callable[[int], int]
) -> None:
    """Record the conflicts of a closed link.

    Args:
        response: the response at the end of the link. Only a live node answers a refusal by closing the connection; a
            connection that its edge dropped long ago, and that was read only now, is not from a second node.
    """
    if isinstance(response, web.WebSocketResponse) and response.close_code == aiohttp.WSCloseCode.OK:
        for log, refused in link.refused_claims():
            await note_conflicts(log, refused, link.conflict, wall_clock=wall_clock, random_bits=random_bits)

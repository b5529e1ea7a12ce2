"""Notes of links that were refused because another node has their identity, so that completeness waits."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp import web

from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.shard.conflicts import note_conflicts


async def note_refused(
    link: EdgeLink, response: web.StreamResponse, wall_clock: Callable[[], int], random_bits: Callable[[int], int]
) -> None:
    """Note the conflicts of a link that is over.

    Args:
        response: as the link left it. Only a node that is there answers a refusal by closing the connection; one that
            its edge gave up long ago, and that only now was read, is no second node.
    """
    if isinstance(response, web.WebSocketResponse) and response.close_code == aiohttp.WSCloseCode.OK:
        for log, refused in link.refused_claims():
            await note_conflicts(log, refused, link.conflict, wall_clock=wall_clock, random_bits=random_bits)

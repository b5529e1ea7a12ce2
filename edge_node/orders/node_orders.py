"""Orders of a node's own command line, and what the node answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from weft.edge_node.control.client import LinksReply, LinksRequest, ReloadReply, ReplayReply, ReplayRequest
from weft.edge_node.orders.reconfigure import ConfigUnusable, Reconfigure

if TYPE_CHECKING:
    from weft.edge_node.functions.runtime.replays import ReplayProgress
    from weft.edge_node.links.links import Links
    from weft.edge_node.links.part import LinksPart

    Replay = Callable[[str, str], Awaitable[ReplayProgress]]


class NodeOrders:
    """One method an order, for ``Control``. They raise nothing: a refusal is the reply's ``error``."""

    def __init__(self, reconfigure: Reconfigure, replay: Replay, links: Links, shown: LinksPart) -> None:
        self._reconfigure = reconfigure
        self._replay = replay
        self._links = links
        self._shown = shown

    async def reload(self) -> ReloadReply:
        """Read the configuration again."""
        try:
            found = await self._reconfigure.reload()
        except ConfigUnusable as error:
            return ReloadReply(error=str(error))
        return ReloadReply(found.version.number, found.version.digest, found.applied, found.restart)

    async def replay(self, request: ReplayRequest) -> ReplayReply:
        """Give a stream's stored records to a function again."""
        from weft.edge_node.functions.runtime.replays import ReplayRefused

        try:
            progress = await self._replay(request.stream, request.into)
        except ReplayRefused as error:
            return ReplayReply(error=str(error))
        return ReplayReply(progress.rows, progress.left)

    async def links(self, request: LinksRequest) -> LinksReply:
        """Pause or resume links, and say how they are."""
        try:
            if request.action != "status":
                await self._links.pause(request.link, is_paused=request.action == "pause")
        except ValueError as error:
            return LinksReply(error=str(error))
        except OSError as error:
            return LinksReply(error=f"the order counts until the node stops, and cannot be stored: {error}")
        links = self._shown.facts()["links"]
        return LinksReply({name: each for name, each in links.items() if request.link in ("", name)})

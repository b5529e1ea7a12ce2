"""``GET /v1/nodes`` and ``GET /v1/troubles``: what an operator asks any process about the hub as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from weft.cloud_hub.api.access import Access
from weft.cloud_hub.api.edges import LinksElsewhere
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.summaries.shard_summary import CONFLICTS_MAX
from weft.cloud_hub.api.summaries.summaries import ShardSummaries
from weft.cloud_hub.api.views import LOST_LISTED_MAX, View, lost_views
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster.node_views import node_views
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.presence.nodes import running

NODES, TROUBLES = "/v1/nodes", "/v1/troubles"
READ_AGE_S = 5.0
"""Maximum age of the entries that an answer is made of: they are read for all who ask within it."""


class FleetRequests:
    """Handlers of the requests.

    Args:
        summaries: of all shards.
        own: returns the process's own shards.
        elsewhere: returns what other processes tell of their links.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Callable[[], Cluster],
        clock: HubClock,
        access: Access,
        *,
        summaries: ShardSummaries,
        own: Callable[[], Sequence[Sequencer]],
        elsewhere: Callable[[], Awaitable[LinksElsewhere]],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._cluster, self._clock, self._access = store, cluster, clock, access
        self._summaries, self._own, self._elsewhere, self._monotonic = summaries, own, elsewhere, monotonic
        self._nodes: list[dict[str, Any]] = []
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([web.get(NODES, self._get_nodes), web.get(TROUBLES, self._get_troubles)])

    async def _get_nodes(self, request: web.Request) -> web.Response:
        """Return the processes that share the store."""
        self._access.operate(request, Right.STATUS)
        async with self._reading:
            now = self._monotonic()
            if self._read_at is None or now - self._read_at >= READ_AGE_S:
                wall = self._clock.now()
                self._nodes, self._read_at = node_views(await running(self._store, wall), self._cluster(), wall), now
        return _json({"nodes": self._nodes})

    async def _get_troubles(self, request: web.Request) -> web.Response:
        """Return conflicts, open gaps and lost records of all shards."""
        self._access.operate(request, Right.STATUS)
        shards, elsewhere = await self._summaries.every(), await self._elsewhere()
        conflicts = [view for each in shards.summaries for view in each.conflicts]
        more = sum(each.conflicts_more for each in shards.summaries)
        gaps = [view for each in shards.summaries for view in each.open_gaps]
        gaps_more = sum(each.open_gaps_more for each in shards.summaries)
        gaps.sort(key=lambda gap: (gap["tenant"], gap["edge"], gap["log"], gap["stream"]))
        gaps.sort(key=lambda gap: str(gap["until"]), reverse=True)
        lost = [*lost_views(self._own()), *elsewhere.lost][:LOST_LISTED_MAX]
        unknown = {"lost_unknown_at": list(elsewhere.unknown_at)} if elsewhere.unknown_at else {}
        return _json({
            "conflicts": conflicts[:CONFLICTS_MAX],
            "conflicts_more": more + max(0, len(conflicts) - CONFLICTS_MAX),
            "open_gaps": gaps[:OPEN_GAPS_MAX],
            "open_gaps_more": gaps_more + max(0, len(gaps) - OPEN_GAPS_MAX),
            "lost": lost, **unknown, **shards.view(),
        })  # fmt: skip


def _json(view: View) -> web.Response:
    return web.Response(body=msgspec.json.encode(view) + b"\n", content_type="application/json")

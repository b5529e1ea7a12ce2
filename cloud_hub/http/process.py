"""Requests about a process and the hub as a whole: its health, its metrics and status, the way in for
links, and troubles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from msgspec import UNSET

from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership
from weft.cloud_hub.reads.answers import answered, routes
from weft.cloud_hub.reads.metrics import Metrics
from weft.cloud_hub.reads.summaries import CONFLICTS_MAX, LinksElsewhere, ShardSummaries
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import LOST_LISTED_MAX, Shards, lost_views
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.metrics.exposition import CONTENT_TYPE
from weft.config.units import approximate_duration
from weft.hub_api.rights import Right
from weft.hub_api.status import StatusAnswer, TroublesAnswer
from weft.network.http_server import Handler
from weft.protocols.health import health_answer
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.replication.runner import LINK_PATH
from weft.storage.fenced_store import FencedStore

# ``GET /v1/troubles``: what an operator asks any process about the hub as a whole.


class TroubleRequests:
    """Handler of the request.

    Args:
        summaries: of all shards.
        own: returns the process's own shards.
        elsewhere: returns what other processes tell of their links.
    """

    def __init__(
        self,
        access: Access,
        *,
        summaries: ShardSummaries,
        own: Callable[[], Sequence[Sequencer]],
        elsewhere: Callable[[], Awaitable[LinksElsewhere]],
    ) -> None:
        self._access, self._summaries, self._own, self._elsewhere = access, summaries, own, elsewhere

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(troubles=self._get_troubles))

    async def _get_troubles(self, request: web.Request) -> web.Response:
        """Return conflicts, open gaps and lost records of all shards."""
        self._access.operate(request, Right.STATUS)
        shards, elsewhere = await self._summaries.every(), await self._elsewhere()
        conflicts = [view for each in shards.summaries for view in each.conflicts]
        more = sum(each.conflicts_more for each in shards.summaries)
        gaps = [view for each in shards.summaries for view in each.open_gaps]
        gaps_more = sum(each.open_gaps_more for each in shards.summaries)
        gaps.sort(key=lambda gap: (gap.tenant, gap.edge, gap.log, gap.stream))
        gaps.sort(key=lambda gap: gap.until, reverse=True)
        lost = [*lost_views(self._own()), *elsewhere.lost][:LOST_LISTED_MAX]
        return answered(
            TroublesAnswer(
                conflicts=conflicts[:CONFLICTS_MAX],
                conflicts_more=more + max(0, len(conflicts) - CONFLICTS_MAX),
                open_gaps=gaps[:OPEN_GAPS_MAX],
                open_gaps_more=gaps_more + max(0, len(gaps) - OPEN_GAPS_MAX),
                lost=lost,
                lost_unknown_at=list(elsewhere.unknown_at) or UNSET,
                as_of=shards.as_of,
                missing_shards=shards.missing_shards,
            )
        )


STORE_SILENCE_S = 15.0
"""Time for which the store owes a shard an answer before the shard makes the node not ready. One slow response or one
retry does not count, and a load balancer detects an outage before edges fill their windows."""
LOOK_AGE_S, LOOK_S_MAX = 1.0, 2.0
"""Age of a look at a bucket with which a probe is content, so that probes cost at most one request a second; and the
longest time that a probe waits for one."""


class Health:
    """The health of a process.

    Args:
        store: the store of the cluster.
    """

    def __init__(
        self, shards: Shards, tables: HubTables, membership: Membership, clock: HubClock, store: FencedStore
    ) -> None:
        self._shards, self._tables, self._membership = shards, tables, membership
        self._clock, self._store = clock, store

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when a restart would not help.

        A failing store or a damaged shard is not a reason: a new process would have the same problem.
        """
        ended = [sequencer.log.shard for sequencer in self._shards.own if not sequencer.is_running]
        reasons = [f"the work on shard {shard} has ended" for shard in ended]
        if self._tables.maker is not None and not self._tables.maker.is_running:
            reasons.append("the work on the tables has ended")
        return reasons

    async def unready(self) -> list[str]:
        """Look at the store, and return the reasons why the node accepts no links and answers no readers; empty if it
        does.

        One working shard is enough: a failing shard affects only its own edges, and fails on every node.
        """
        await self._store.look(LOOK_AGE_S, LOOK_S_MAX)
        reasons, own = [], self._shards.own
        if self._membership.is_outdated:
            return [f"the cluster is at level {self._membership.level}, above this release"]
        for sequencer in own:
            shard, silent_s = sequencer.log.shard, sequencer.silent_s
            if not sequencer.loaded:
                reasons.append(f"shard {shard} is not loaded")
            elif silent_s > STORE_SILENCE_S:
                reasons.append(f"the store has not answered for {approximate_duration(silent_s)} (shard {shard})")
        doubted, leaves = self._clock.doubted(), self._membership.is_leaving
        if self._store.trouble is not None:
            return [self._store.trouble]
        if (silent_s := self._store.silent_s) > STORE_SILENCE_S:
            return [f"the store has not answered for {approximate_duration(silent_s)}"]
        general = [*self.unhealthy(), *([doubted] if doubted else []), *(["the node is leaving"] if leaves else [])]
        return general + (reasons if len(reasons) == len(own) else [])


class ProcessRequests:
    """Requests about the process itself, and the way in for links.

    Args:
        status: returns the process, its shards and its links.
        link: runs a link until it ends.
    """

    def __init__(
        self, status: Callable[[], StatusAnswer], link: Handler, health: Health, metrics: Metrics, access: Access
    ) -> None:
        self._status, self._link, self._health = status, link, health
        self._metrics, self._access = metrics, access

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(
            [
                web.get(LINK_PATH, self._link),
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_healthz),
                web.get("/readyz", self._get_readyz),
                *routes(status=self._get_status),
            ]
        )

    async def _get_metrics(self, request: web.Request) -> web.Response:
        self._access.operate(request, Right.METRICS)
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_healthz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("healthy", self._health.unhealthy(), request.headers))

    async def _get_readyz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("ready", await self._health.unready(), request.headers))

    async def _get_status(self, request: web.Request) -> web.Response:
        self._access.operate(request, Right.STATUS)
        return answered(self._status())

"""``GET /v1/regions``: how far the links to other regions are, as their processes last wrote it to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec
from aiohttp import web

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.views import View
from weft.cloud_hub.declared.changes import pause_region
from weft.cloud_hub.declared.declarations import DeclaredRegions
from weft.cloud_hub.declared.requested import Reason, RequestedChanges, json_answer
from weft.cloud_hub.settings import RegionSettings
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.region_positions import RegionPosition, RegionPositions

REGIONS, REGION = "/v1/regions", "/v1/regions/{region}"
READ_AGE_S = 5.0
"""Maximum age of what an answer is made of: it is read for all who ask within it."""
READS_AT_ONCE = 16
OLD_S = 900.0
"""Age of a report after which no process seems to run the link: one is written every five minutes."""
NOT_BEGUN, NO_NEWS = "not begun", "no news"


async def region_views(store: ObjectStore, cluster: Cluster, regions: Iterable[str], now: int) -> list[View]:
    """Return the state of the link of each shard to each region, as of the last report in the store.

    Args:
        now: nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    positions = RegionPositions(store, cluster)
    wanted = [(name, shard) for name in sorted(regions) for shard in range(cluster.tree.count)]
    views: list[View] = []
    for at in range(0, len(wanted), READS_AT_ONCE):
        some = wanted[at : at + READS_AT_ONCE]
        found = await asyncio.gather(*(positions.read(name, shard) for name, shard in some))
        views += [_view(name, shard, position, now) for (name, shard), (position, _) in zip(some, found, strict=True)]
    return views


def _view(name: str, shard: int, position: RegionPosition | None, now: int) -> View:
    report = None if position is None else position.report
    age = None if report is None else max(0, now - report.at) / 1e9
    state = NOT_BEGUN if report is None or age is None else NO_NEWS if age > OLD_S else report.state
    return {
        "region": name,
        "shard": shard,
        "state": state,
        "error": "" if report is None else report.error,
        "lag_records": None if report is None else report.lag_records,
        "lag_bytes": None if report is None else report.lag_bytes,
        "lag_seconds": None if report is None else report.lag_seconds,
        "next": None if position is None else position.next,
        "lost_chunks": [] if position is None else [{"first": first, "end": end} for first, end in position.lost],
        "peer": None if position is None else position.peer or None,
        "process": None if report is None else report.host,
        "seen_seconds_ago": age,
    }


class RegionOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: whether the records for a region wait."""

    paused: bool
    reason: Reason = ""
    """For the record of administrative acts."""


class RegionRequests:
    """Handlers of the requests.

    Args:
        regions: those of this process's configuration, by name.
        declared: an operator's orders, as this process knows them.
        monotonic: seconds.
    """

    def __init__(
        self, store: ObjectStore, cluster: Callable[[], Cluster], changes: RequestedChanges, *,
        regions: Mapping[str, RegionSettings], declared: DeclaredRegions, monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store, self._cluster, self._changes = store, cluster, changes
        self._regions, self._declared, self._monotonic = regions, declared, monotonic
        self._views: list[View] = []
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([web.get(REGIONS, self._get), web.put(REGION, self._put)])

    async def _get(self, request: web.Request) -> web.Response:
        """Return the regions of the configuration, and the links of all shards to them."""
        self._changes.access.operate(request, Right.STATUS)
        async with self._reading:
            now = self._monotonic()
            if self._read_at is None or now - self._read_at >= READ_AGE_S:
                clock = self._changes.clock.now()
                self._views = await region_views(self._store, self._cluster(), self._regions, clock)
                self._read_at = now
        configured = [
            {"region": name, "paused": self._declared.of(name).paused, "pin_seconds": settings.pin_s}
            for name, settings in sorted(self._regions.items())
        ]
        return json_answer({"regions": self._views, "configured": configured})

    async def _put(self, request: web.Request) -> web.Response:
        """Declare that the records for a region wait, or go on. Answered when that is durable."""
        wanted = await self._changes.body(request, Right.NODES, RegionOrder, "an order to a region's links")
        instead = f"weft hub region {'pause' if wanted.paused else 'resume'}"
        author = self._changes.author(request, Right.NODES, wanted.reason, instead=instead)
        name = request.match_info["region"]
        if name not in self._regions:
            there = ", ".join(sorted(self._regions)) or "none"
            raise ApiError(404, f"`regions` of this hub has no {name[:80]!r}", f"there are: {there}")
        await self._changes.declare(pause_region(name, paused=wanted.paused), author)
        return json_answer({"region": name, "paused": wanted.paused})

"""Numbers of lanes and streams of tenants over all shards, for their quotas.

Only tenants with such a quota cost anything, and only when a lane opens that no shard has yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.cloud_hub.declared.documents import Quotas
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.lane import Lane

COUNT_AGE_S = 5.0
"""Maximum age of numbers. Lanes that other processes opened meanwhile may go beyond a quota by as many."""
OPENING_MAX = 100_000
"""Maximum number of lanes that are open and that no shard has yet, of all tenants."""


@dataclass
class _Counted:
    at: float
    lanes: int = 0
    streams: set[str] = field(default_factory=set)


class TenantCounts:
    """The numbers of one process.

    Args:
        monotonic: seconds.
    """

    def __init__(self, shards: Callable[[], Shards | None], monotonic: Callable[[], float]) -> None:
        self._shards, self._monotonic = shards, monotonic
        self._counted: dict[str, _Counted] = {}
        self._opening: dict[Lane, Sequencer] = {}
        """Open lanes that may have no record or mark yet."""
        self._counting = asyncio.Lock()

    async def full(self, quotas: Quotas, lane: Lane, sequencer: Sequencer) -> str | None:
        """Return the name of the quota that leaves no room for a lane, ``lanes`` or ``streams``; None if there is room,
        in which case the lane counts. Lanes and streams that are there already are never refused."""
        if (quotas.lanes is None and quotas.streams is None) or lane in sequencer.state.lanes or lane in self._opening:
            return None
        counted = await self.count(lane.tenant)
        is_new = lane.stream not in counted.streams
        if quotas.streams is not None and is_new and len(counted.streams) >= quotas.streams:
            return "streams"
        if quotas.lanes is not None and counted.lanes >= quotas.lanes:
            return "lanes"
        counted.lanes += 1
        counted.streams.add(lane.stream)
        if len(self._opening) < OPENING_MAX:
            self._opening[lane] = sequencer
        return None

    def has_stream(self, tenant: str, stream: str) -> bool:
        """Return whether a shard of this process has a stream: a deleted one is in none."""
        shards = self._shards()
        return shards is not None and any(each.loaded and each.state.has_stream(tenant, stream) for each in shards)

    def closed(self, lane: Lane) -> None:
        """Note that a lane is closed: without a record it is none."""
        self._opening.pop(lane, None)

    async def count(self, tenant: str) -> _Counted:
        """Return a tenant's lanes and streams as of at most ``COUNT_AGE_S`` ago. Shards that cannot be read count as
        empty."""
        async with self._counting:
            now = self._monotonic()
            self._counted = {name: each for name, each in self._counted.items() if now - each.at < COUNT_AGE_S}
            if (known := self._counted.get(tenant)) is None:
                known = self._counted[tenant] = await self._read(tenant)
            return known

    async def _read(self, tenant: str) -> _Counted:
        shards, counted = self._shards(), _Counted(self._monotonic())
        if shards is None:
            return counted
        own = shards.own
        for each in own if len(own) == shards.count else await shards.all():
            if each.loaded:
                counted.lanes += each.state.lane_count(tenant)
                counted.streams.update(each.state.tenant_streams(tenant))
        self._opening = {lane: each for lane, each in self._opening.items() if lane not in each.state.lanes}
        for lane in self._opening:
            if lane.tenant == tenant:
                counted.lanes += 1
                counted.streams.add(lane.stream)
        return counted

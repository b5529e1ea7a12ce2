"""The way from a hub process to edges, put together: messages, configurations, and requests for records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from weft.cloud_hub.api.access import Access
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster.owners import Owners
from weft.cloud_hub.declared.declarations import Declarations
from weft.cloud_hub.desired.links import ConfiguredLink
from weft.cloud_hub.desired.service import FleetConfigs
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.down.requests import Messages, message_rates
from weft.cloud_hub.pulls.requests import PullRequests
from weft.cloud_hub.pulls.service import HubPulls
from weft.cloud_hub.shard.shards import Shards
from weft.storage.object_store import ObjectStore


class ToEdges:
    """The way down of one process.

    Args:
        links: the open links of this process.
        messages_per_s: messages that a tenant publishes a second.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        declared: Declarations,
        shards: Shards,
        owners: Owners,
        *,
        clock: HubClock,
        links: Callable[[], Iterable[ConfiguredLink]],
        messages_per_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._declared, self._shards, self._owners, self._clock = declared, shards, owners, clock
        self.down = HubDown(shards, clock.now)
        self.fleet = FleetConfigs(
            store, cluster_id, declared, places=shards.places, is_own=owners.is_own, now=clock.now, links=links
        )
        self._rates = message_rates(messages_per_s, monotonic)
        self.pulls = HubPulls(store, cluster_id, declared, shards, is_own=owners.is_own, clock=clock)
        self._is_started = False

    def start(self) -> None:
        """Begin, when the declared facts are known."""
        self._is_started = True
        self.fleet.start()
        self.pulls.start()

    def add_to(self, application: web.Application, access: Access) -> None:
        """Add the requests to the application of the API."""
        Messages(
            self.down, self._shards, access, self._owners.elsewhere, self._clock, groups=self._declared.groups,
            rates=self._rates,
        ).add_to(application)  # fmt: skip
        PullRequests(self.pulls, self._declared.pulls, self._shards, access, self._clock).add_to(application)

    async def close(self) -> None:
        """Stop, except for messages, which links still bring: ``down.close`` ends them."""
        if self._is_started:
            await self.pulls.close()
            await self.fleet.close()

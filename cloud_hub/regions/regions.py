"""The links of one hub process to other regions: one for each region and each shard that the process owns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.declared.declarations import DeclaredRegions
from weft.cloud_hub.regions.link import RegionLink
from weft.cloud_hub.settings import RegionSettings
from weft.cloud_hub.shard.shards import Shards
from weft.config.metrics.exposition import Sample
from weft.replication.status import LinkState
from weft.storage.region_positions import RegionPositions

_logger = logging.getLogger(__name__)
LOOK_S = 1.0
"""Interval of looks for shards that have come or gone."""


class Regions:
    """The links, which follow the owners of shards.

    Args:
        host: name of this process.
        retain_log_s: seconds for which the log keeps all chunks; None if it deletes none.
    """

    def __init__(
        self, settings: Mapping[str, RegionSettings], shards: Shards, positions: RegionPositions, *, clock: HubClock,
        host: str, declared: DeclaredRegions, retain_log_s: float | None,
    ) -> None:  # fmt: skip
        self._retain_log_s = retain_log_s
        self._settings, self._shards, self._positions = settings, shards, positions
        self._clock, self._host, self._declared = clock, host, declared
        self._links: dict[tuple[str, int], tuple[RegionLink, asyncio.Task[None]]] = {}
        self._task = BackgroundTask()

    def __iter__(self) -> Iterator[RegionLink]:
        """Iterate over the links of this process."""
        return iter([link for link, _ in self._links.values()])

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of the links for Prometheus."""
        for link in self:
            labels = link.name, str(link.shard)
            report = link.report()
            yield Sample("weft_hub_region_connected", int(link.status.state == LinkState.CONNECTED), labels)
            yield Sample("weft_hub_region_lag_seconds", report.lag_seconds, labels)
            if self._retain_log_s is not None:
                kept_s = max(self._settings[link.name].pin_s, self._retain_log_s)
                yield Sample("weft_hub_region_kept_seconds", kept_s, labels)
            yield Sample("weft_hub_region_lost_chunks", len(link.lost), labels)

    def start(self) -> None:
        """Begin, if there are regions."""
        if self._settings:
            self._task.start(self._run(), name="regions")

    async def close(self) -> None:
        """End all links. What was sent is still acknowledged by the region, and compared by the next link."""
        await self._task.close()
        await self._end(list(self._links))

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # without this task, no shard's link would begin any more
                _logger.exception("links to other regions could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        own = {each.log.shard: each for each in self._shards.own if each.loaded and each.is_running}
        await self._end(
            [
                key
                for key, (link, task) in self._links.items()
                if own.get(key[1]) is not link.sequencer or task.done()
                or link.comparison != self._declared.of(key[0]).comparison
            ]
        )  # fmt: skip
        for name, settings in self._settings.items():
            for shard, sequencer in own.items():
                if (name, shard) in self._links:
                    continue
                link = RegionLink(
                    name, settings, sequencer, self._positions, clock=self._clock, host=self._host,
                    declared=self._declared,
                )  # fmt: skip
                self._links[name, shard] = link, asyncio.create_task(link.run(), name=f"region-{name}-{shard}")

    async def _end(self, keys: list[tuple[str, int]]) -> None:
        tasks = [self._links.pop(key)[1] for key in keys]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                _logger.error("a link to another region failed, and begins again: %r", result, exc_info=result)

"""Membership of a hub process in its cluster: its entry among the running nodes, and its level.

A release that extends the log's format knows a higher level, and writes the extension only when the cluster has that
level. ``finalize`` raises it when every running node knows it (docs/how-to/upgrade-a-hub.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weft.cloud_hub.clock import HubClock
from weft.config.log_lines.repeats import Repeats, left_out
from weft.storage import nodes
from weft.storage.cluster import ClusterUnusable, raise_level, read_level
from weft.storage.nodes import NodeEntry
from weft.storage.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

READ_INTERVAL_S = 30.0
"""Interval at which a node reads the cluster's level again."""
ANNOUNCE_INTERVAL_S = 60.0
"""Interval at which a node writes its entry again; after five missed ones it counts as gone."""


class NotFinalized(Exception):
    """The level cannot be raised. The message has the reason and advice."""


class Membership:
    """A node's part in its cluster.

    Args:
        node_id: unique for each process and each start.
        level: the cluster's level, just read.
        release_level: the highest level that this release knows.
        clock: held against the store's each time that the entry is written again.
    """

    def __init__(
        self,
        store: ObjectStore,
        node_id: str,
        *,
        software: str,
        level: int,
        release_level: int,
        clock: HubClock,
    ) -> None:
        self.node_id = node_id
        self.level = level
        """The cluster's level, as last read."""
        self.release_level = release_level
        self._store = store
        self._software = software
        self._clock = clock
        self._wrote: tuple[int, int] | None = None
        """The boot clock before and after the entry was last written; None when that is not clear."""
        self._url = ""
        self._repeats = Repeats()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def writes(self) -> int:
        """Return the level up to which the node may write."""
        return min(self.level, self.release_level)

    @property
    def is_outdated(self) -> bool:
        """Return whether the cluster has reached a level that this release does not know."""
        return self.level > self.release_level

    async def start(self, url: str) -> None:
        """Announce the node, and keep entry and level fresh.

        Raises:
            StoreError: the store did not answer.
        """
        self._url = url
        await self._announce()
        self._tasks = [
            asyncio.create_task(self._repeat(self._announce, ANNOUNCE_INTERVAL_S), name="announce"),
            asyncio.create_task(self._repeat(self._read_level, READ_INTERVAL_S), name="cluster-level"),
        ]

    async def close(self) -> None:
        """Stop, and remove the entry. A remaining entry counts as gone after five minutes."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            try:
                await nodes.withdraw(self._store, self.node_id)
            except StoreError as error:
                logger.info("the entry of this node stays in the store for five minutes: %s", error)

    async def _announce(self) -> None:
        entry = NodeEntry(self.node_id, self._url, self._software, self.release_level, self._clock.now())
        last, self._wrote = self._wrote, None
        before = self._clock.boot()
        written = await nodes.announce(self._store, entry)
        self._wrote = before, self._clock.boot()
        if last is not None and written is not None:
            self._clock.wrote(*last, written)

    async def _read_level(self) -> None:
        level = await read_level(self._store)
        if level > self.level:
            logger.info("the cluster is at level %d now", level)
            self.level = level
            if self.is_outdated:
                logger.error(
                    "the cluster is at level %d, this release knows level %d: it takes no more links; use the release "
                    "that the other nodes run",
                    level,
                    self.release_level,
                )

    async def _repeat(self, call: Callable[[], Awaitable[None]], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await call()
            except (StoreError, ClusterUnusable) as error:
                count = self._repeats.say(str(error), asyncio.get_running_loop().time())
                if count is not None:
                    logger.warning("the cluster's objects in the store: %s%s", error, left_out(count))


async def finalize(store: ObjectStore, release_level: int, now: int) -> tuple[int, int]:
    """Raise the cluster's level to that of this release, if all running nodes know it.

    Args:
        now: nanoseconds since 1970.

    Returns:
        The level before and after.

    Raises:
        NotFinalized: a running node does not know the level, or the cluster is past it.
        ClusterUnusable: the store holds no cluster.
        StoreError: the store did not answer.
    """
    before = await read_level(store)
    if before > release_level:
        raise NotFinalized(
            f"the cluster is at level {before}, this release knows level {release_level}: use the release that the "
            "nodes run"
        )
    behind = [node for node in await nodes.running(store, now) if node.level < release_level]
    if behind and before < release_level:
        named = "; ".join(f"node {node.id} at {node.url or 'an unknown address'}, {node.software}" for node in behind)
        raise NotFinalized(
            f"level {release_level} is unknown to {named}. Upgrade these nodes, or wait five minutes when they are gone"
        )
    await raise_level(store, release_level)
    return before, release_level

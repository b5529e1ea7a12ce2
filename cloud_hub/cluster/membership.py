"""Membership of a hub process in its cluster: its entry among the running nodes, and its level.

A release that extends the log's format knows a higher level, and writes the extension only when the cluster has that
level. ``finalize`` raises it when every running node knows it (docs/how-to/upgrade-a-hub.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import msgspec

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster.owners import Owners
from weft.config.log_lines.repeats import Repeats, left_out
from weft.storage import hub_keys
from weft.storage.cluster import Cluster, ClusterUnusable, raise_level, read_cluster, read_level
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence import nodes
from weft.storage.presence.nodes import Intake, NodeEntry
from weft.storage.presence.presence import BEAT_S, Presence

logger = logging.getLogger(__name__)

READ_INTERVAL_S = 5.0
"""Interval at which a node reads the cluster's level and splits again. A read costs a bucket 0.2 dollars a month."""
DRAIN_BEATS = 2.5
"""Time after which a process that leaves waits no longer for others to load its shards. They look once a beat."""
DRAIN_LOOK_S = 0.5
NAMED_MAX = 10
"""Maximum number of nodes that an error names."""
ANNOUNCE_INTERVAL_S = 60.0
"""Interval at which a node that is alone writes its entry again; after five missed ones it counts as gone."""


@functools.cache  # reading it takes two milliseconds, too long to do for every link
def software() -> str:
    """Return name and version of this release, for peers and people."""
    try:
        return f"weft {version('weft-fabric')}"
    except PackageNotFoundError:
        return "weft"


class NotFinalized(Exception):
    """The level cannot be raised. The message has the reason and advice."""


class Work(NamedTuple):
    """Work of a process at present, for its entry."""

    shards: tuple[int, ...] = ()
    """Shards that it has loaded."""
    links: int = 0
    cluster_log: int = 0
    """Number of the last entry of the cluster log that it knows."""
    tenants: dict[str, tuple[int, int]] = {}
    """Tenants with quotas, as ``NodeEntry`` has them."""
    tables: int | None = None
    """Number of tables that it makes; None if it makes none."""
    load: float | None = None
    """Cores that it used on average since its last entry, or its start; None if no time has passed."""
    intake: Intake | None = None
    """Rate of what links bring."""


class Membership:
    """A node's part in its cluster.

    Args:
        node_id: unique for each process and each start.
        level: the cluster's level, just read.
        release_level: the highest level that this release knows.
        clock: held against the store's each time that the entry is written again.
        owners: told who is there; None for a node that takes no part in the division of shards.
        work: the process's work at present.
        grown: called with the cluster, when it was read and has more shards.
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
        owners: Owners | None = None,
        work: Callable[[], Work] = Work,
        grown: Callable[[Cluster], Awaitable[None]] | None = None,
    ) -> None:
        self.node_id = node_id
        self.level = level
        """The cluster's level, as last read."""
        self.release_level = release_level
        self._store = store
        self._software = software
        self._clock = clock
        self._owners = owners
        self._work = work
        self._url = ""
        self._grown, self._added = grown, 0
        self._soon = asyncio.Event()
        self._repeats = Repeats()
        self._presence = Presence(
            store, hub_keys.NODES, node_id, self._entry, boot=clock.boot, looked=self._looked, wrote=clock.wrote,
            beat_s=BEAT_S if owners is None else owners.beat_s, alone_write_s=ANNOUNCE_INTERVAL_S,
            is_watched=None if owners is None else owners.beats,
        )  # fmt: skip
        self._task = BackgroundTask()

    @property
    def writes(self) -> int:
        """Return the level up to which the node may write."""
        return min(self.level, self.release_level)

    @property
    def is_outdated(self) -> bool:
        """Return whether the cluster has reached a level that this release does not know."""
        return self.level > self.release_level

    @property
    def is_leaving(self) -> bool:
        """Return whether the node gives its shards to others."""
        return self._owners is not None and self._owners.is_leaving

    async def look(self) -> None:
        """See who is there, before the node serves anyone.

        Raises:
            StoreError: the store did not answer.
        """
        await self._presence.look(writes=False)

    async def start(self, url: str) -> None:
        """Announce the node, and keep entry and level fresh.

        Raises:
            StoreError: the store did not answer.
        """
        self._url = url
        await self._presence.start()
        self._task.start(self._read_levels(), name="cluster-level")

    def look_now(self) -> None:
        """Divide the shards at once, and tell the others: an operator has drained some process."""
        self._presence.hurry()

    async def drain(self, links: Callable[[], int], send_on: Callable[[], Awaitable[None]]) -> None:
        """Give the shards to others if any are there, and the links with them, as far as that does not take too long.
        Until then the node serves its edges.

        Args:
            links: number of links that are open.
            send_on: sends edges to those who have loaded their shards by now.
        """
        if self._owners is None or not self._owners.others():
            return
        await self._owners.leave()
        deadline = asyncio.get_running_loop().time() + DRAIN_BEATS * self._owners.beat_s
        while True:
            try:
                await self._presence.look()
            except StoreError as error:
                logger.warning("the node leaves, but cannot say so to others: %s", error)
                return
            await send_on()
            if not links() or not self._owners.is_relieved or asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(min(DRAIN_LOOK_S, self._owners.beat_s))

    async def close(self) -> None:
        """Stop, and remove the entry. A remaining entry counts as gone after five minutes."""
        await self._task.close()
        await self._presence.close()

    def _entry(self, beat: int) -> bytes:
        entry = NodeEntry(self.node_id, self._url, self._software, self.release_level, self._clock.now(), beat)
        if self._owners is not None:
            interval_s = self._owners.beat_s if self._owners.beats() else ANNOUNCE_INTERVAL_S
            entry = self._owners.entered(entry, interval_s)
            entry = msgspec.structs.replace(
                entry, clock_off_s=self._clock.off_ns / 1e9, **self._work()._asdict()
            )  # fmt: skip
        return msgspec.json.encode(entry)

    async def _looked(self) -> None:
        if self._owners is not None:
            await self._owners.look(self._presence.others())

    def read_soon(self) -> None:
        """Read the cluster now: a log has a split that this node may not know."""
        self._soon.set()

    async def _read_levels(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), READ_INTERVAL_S)
            self._soon.clear()
            try:
                await self._read_level()
            except (StoreError, ClusterUnusable) as error:
                count = self._repeats.say(str(error), asyncio.get_running_loop().time())
                if count is not None:
                    logger.warning("the cluster's level: %s%s", error, left_out(count))

    async def _read_level(self) -> None:
        cluster = await read_cluster(self._store)
        level = cluster.level
        if self._grown is not None and cluster.tree.count - cluster.shards > self._added:
            self._added = cluster.tree.count - cluster.shards
            await self._grown(cluster)
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
        raise NotFinalized(f"level {release_level} is unknown to {_named(behind)}")
    await raise_level(store, release_level)
    return before, release_level


def _named(behind: list[NodeEntry]) -> str:
    """Return names of nodes that do not know a level, and advice."""
    nodes = [f"node {each.id} at {each.url or 'an unknown address'}, {each.software}" for each in behind[:NAMED_MAX]]
    more = f"; and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
    advice = "Upgrade these nodes, or wait five minutes when they are gone"
    if any(each.level == 0 for each in behind):
        advice += ". What cannot be read is no node of Weft: remove it from the store, below `nodes/`"
    return f"{'; '.join(nodes)}{more}. {advice}"

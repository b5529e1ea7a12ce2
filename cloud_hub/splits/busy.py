"""Automatic splits: of a shard that keeps a process of the hub busy for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from weft.cloud_hub.shard.shards import Shards
from weft.cloud_hub.splits.declaring import parts_of
from weft.storage.cluster import ClusterUnusable, declare_split, read_cluster
from weft.storage.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

BUSY, PART = 0.7, 0.5
"""Part of a core above which a process is busy, and part of the written bytes from which on a shard is the reason."""
SUSTAINED_S = 600.0
"""Time for which both have to hold: a split cannot be reverted, and a backlog after an outage ends by itself."""
SAMPLE_S = 30.0


Noted = Callable[[str, str, str], AbstractAsyncContextManager[None]]
"""Function from act, target and reason to the context that writes the lines of the act."""


class ProcessLoad:
    """The load of one process, sample by sample: whether one of its shards has kept it busy for long."""

    def __init__(self) -> None:
        self._last: tuple[float, float, dict[int, int]] | None = None
        self._shard: int | None = None
        self._since = 0.0

    def sample(self, now: float, cpu_s: float, written: Mapping[int, int]) -> int | None:
        """Return the shard that has kept the process busy for ``SUSTAINED_S``; None without one.

        Args:
            now: monotonic seconds.
            cpu_s: processor time of the process since its start.
            written: bytes that the process has written to each of its shards since its start.
        """
        last, self._last = self._last, (now, cpu_s, dict(written))
        if last is None or now <= last[0]:
            return None
        shard = _busiest(last, self._last)
        if shard != self._shard:
            self._shard, self._since = shard, last[0]
        if shard is None or now - self._since < SUSTAINED_S:
            return None
        self._shard = None  # the next split takes as long again
        return shard


def _busiest(last: tuple[float, float, dict[int, int]], new: tuple[float, float, dict[int, int]]) -> int | None:
    """Return the shard that made a process busy between two samples; None if it was not, or no shard alone did."""
    if (new[1] - last[1]) / (new[0] - last[0]) < BUSY:
        return None
    grown = {shard: written - last[2].get(shard, 0) for shard, written in new[2].items()}
    shard = max(grown, key=lambda each: grown[each], default=None)
    return shard if shard is not None and grown[shard] > 0 and grown[shard] >= PART * sum(grown.values()) else None


class Clocks(NamedTuple):
    """Clocks of a process, seconds."""

    monotonic: Callable[[], float]
    processor: Callable[[], float]
    """Processor time of the process."""


class Load:
    """The cores that a process uses, from one question to the next."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks, self._last = clocks, (clocks.monotonic(), clocks.processor())

    def used(self) -> float | None:
        """Return the cores used since the last call; None if no time has passed since."""
        (then, before), self._last = self._last, (self._clocks.monotonic(), self._clocks.processor())
        now, after = self._last
        return max(0.0, after - before) / (now - then) if now > then else None


async def split_busy(  # noqa: PLR0917 - what is split, when, and what hears of it
    store: ObjectStore, shards: Shards, shards_max: int, clocks: Clocks, declared: Callable[[], None], noted: Noted
) -> None:
    """Split shards that keep this process busy, until the store has ``shards_max`` of them. Never returns.

    Args:
        declared: called after a split was declared: the cluster has to be read again.
        noted: writes the lines of the act; what it raises prevents it.
    """
    load = ProcessLoad()
    while True:
        await asyncio.sleep(SAMPLE_S)
        written = {each.log.shard: each.counters.bytes for each in shards.own}
        shard = load.sample(clocks.monotonic(), clocks.processor(), written)
        if shard is None:
            continue
        try:
            if await _split(store, shards, shard, shards_max, noted):
                declared()
        except (StoreError, ClusterUnusable) as error:
            logger.warning("shard %d keeps this process busy, and was not split: %s", shard, error)


async def _split(store: ObjectStore, shards: Shards, shard: int, shards_max: int, noted: Noted) -> bool:
    """Declare the split of a busy shard. Return whether there is one: the owner of the new shard puts it into force."""
    cluster = await read_cluster(store)
    held = next((each for each in shards.own if each.log.shard == shard and each.loaded), None)
    if held is None or cluster.tree.count != shards.count:
        return False  # another split is on its way
    if len(shards.own) == shards.count:
        return False  # no other process is there that could take the half
    if cluster.tree.count >= shards_max:
        logger.warning("shard %d keeps this process busy; the hub has %d shards, `shards_max`", shard, shards.count)
        return False
    parts = parts_of(held.state, cluster.tree.next_bit(shard))
    if not (parts.moving and parts.staying):
        logger.warning("shard %d keeps this process busy, and a split would part no load: all is of one edge, or of "
                       "edges that stay together", shard)  # fmt: skip
        return False
    why = f"it kept a process busy above {BUSY:.0%} of a core for {SUSTAINED_S / 60:.0f} minutes"
    async with noted("automatic split", f"shard {shard}", why):
        declared = await declare_split(store, shard, cluster)
    if declared.splits != (*cluster.splits, shard):
        return True  # another process was faster, with a shard of its own
    logger.info("shard %d keeps this process busy: it is split, and %d of %d edges move to shard %d", shard,
                len(parts.moving), len(parts.moving) + len(parts.staying), declared.tree.count - 1)  # fmt: skip
    return True

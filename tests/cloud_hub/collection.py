"""The collector of a shard's old chunks, and readers that sleep while it works."""

from __future__ import annotations

import asyncio
import random

import msgspec

from tests.cloud_hub.fabric import CLUSTER
from tests.cloud_hub.virtual_time import now_ns
from weft.protocols.chunk_index import FoldRules, StreamKey
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError

DELETION_DELAY_S = 900.0
"""G of docs/architecture.md: between publishing the watermark and deleting."""


class Collector:
    """Raises the watermark, waits, and deletes. ``collected`` keeps what it deleted, for who checks the log."""

    def __init__(self, store: ObjectStore, delay_s: float = DELETION_DELAY_S, log: ShardLog | None = None) -> None:
        self._store = store
        self._delay_s = delay_s
        self._log = log or ShardLog(store, CLUSTER, 0, now_ns)
        self.collected: dict[int, bytes] = {}

    async def collect(self) -> int:
        """Collect everything that the newest snapshot holds; the watermark."""
        manifest, etag = await self._log.manifest()
        watermark = manifest.snapshot_n + 1
        if not await self._log.swap_manifest(msgspec.structs.replace(manifest, watermark=watermark), etag):
            return await self.collect()
        await asyncio.sleep(self._delay_s)
        for n in range(watermark):
            try:
                found = await self._store.get(chunk_key(self._log.shard, n))
            except NotFound:
                continue
            # The first time it is the chunk; later a writer that was paused has made the number again.
            self.collected.setdefault(n, found.data)
            await self._store.delete(chunk_key(self._log.shard, n))
        return watermark


class SleepingReader:
    """A reader of the log that wakes up now and then."""

    def __init__(
        self, store: ObjectStore, rng: random.Random, rules: FoldRules, only: frozenset[StreamKey] | None = None
    ) -> None:
        self._log = ShardLog(store, CLUSTER, 0, now_ns, rules=rules)
        self._rng, self._only = rng, only
        self.state: ShardState | None = None
        self.reloads = 0

    async def run(self) -> None:
        """Read on, for as long as the task lives."""
        while True:
            await self.read()
            await asyncio.sleep(self._rng.choice([0.2, 2.0, 30.0, 300.0, 2000.0]) * self._rng.random())

    async def read(self) -> ShardState:
        """Read up to the head of the log; the state there."""
        while True:
            try:
                if self.state is None:
                    self.state = await self._log.load(self._only)
                await self._log.extend(self.state)
            except CollectedPast:
                self.state, self.reloads = None, self.reloads + 1
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return self.state

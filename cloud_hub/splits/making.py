"""Logs and committers of a store's shards in one hub process, of which splits make more while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.schedule import CommitPace
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.cloud_hub.splits.busy import Clocks, Noted, split_busy
from weft.cloud_hub.splits.splitting import Splitter
from weft.protocols.chunk_index.footer import FoldRules
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore

Beside = Callable[[Shards], Coroutine[Any, Any, None]]


class ShardMaker:
    """Makes what belongs to one shard.

    Args:
        cluster: returns the cluster as the process read it last.
        settings: of the committers.
        clock: the node's.
        random_bits: for nonces and jitter.
        level: the level up to which the process may write.
        rules: rules by which the release writes and folds chunks.
        moved: called when a chunk has moved edges to another shard.
        pace: of the commits of all shards of the process.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Callable[[], Cluster],
        settings: SequencerSettings,
        *,
        clock: HubClock,
        random_bits: Callable[[int], int],
        level: Callable[[], int],
        rules: FoldRules,
        moved: Callable[[], None],
        pace: CommitPace,
    ) -> None:
        self._store, self._cluster, self._settings = store, cluster, settings
        self._clock, self._random_bits, self._level = clock, random_bits, level
        self._rules, self._moved, self._pace = rules, moved, pace
        self._made: dict[int, Sequencer] = {}
        """The last committer of each shard."""
        self._splitter = Splitter(
            self.log, lambda: cluster().tree, wall_clock=clock.sound, random_bits=random_bits, hold=self._hold
        )

    def log(self, shard: int) -> ShardLog:
        """Return the log of a shard."""
        return ShardLog(self._store, self._cluster(), shard, self._clock.boot, rules=self._rules)

    def sequencer(self, shard: int) -> Sequencer:
        """Return a committer of a shard, which is not started. A shard that a split makes begins when it is loaded."""
        made = self._made[shard] = Sequencer(
            self.log(shard), self._settings, clock=self._clock, random_bits=self._random_bits, level=self._level,
            load=partial(self._load, shard), moved=self._moved, pace=self._pace,
        )  # fmt: skip
        return made

    def beside(
        self, shards_max: int | None, clocks: Clocks, declared: Callable[[], None], noted: Noted
    ) -> Beside | None:
        """Return the work that splits busy shards, until there are ``shards_max``; None without it.

        Args:
            declared: called after a split was declared.
            noted: writes the lines of the act.
        """
        if shards_max is None:
            return None
        return lambda shards: split_busy(self._store, shards, shards_max, clocks, declared, noted)

    async def _load(self, shard: int) -> ShardState:
        await self._splitter.begin(shard)
        return await self._made[shard].log.load()

    def _hold(self, shard: int) -> AbstractAsyncContextManager[object]:
        made = self._made.get(shard)
        return made.turn if made is not None and made.is_running else contextlib.nullcontext()


class EveryLog:
    """The logs of all shards for one reader, by number: those of new shards appear at the end."""

    def __init__(self, maker: ShardMaker, count: Callable[[], int]) -> None:
        self._maker, self._count = maker, count
        self._logs: list[ShardLog] = []

    def __iter__(self) -> Iterator[ShardLog]:
        """Iterate over the logs that there are at present."""
        while len(self._logs) < self._count():
            self._logs.append(self._maker.log(len(self._logs)))
        return iter(list(self._logs))

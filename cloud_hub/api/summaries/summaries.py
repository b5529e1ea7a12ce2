"""Summaries of all shards, for lists: an answer is made of them and walks no lanes.

A process makes the summaries of the shards that it holds, a small one when it is asked for and a large one every some
seconds. It stores those of its own large shards while other processes are there, so that a process that is asked about
shards of others need not load them. A summary in the store is a hint for people: no log, claim or right depends on it,
and one that is missing, too old, or from before a split is made again from the shard itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.api.streams.completeness import StreamCompleteness
from weft.cloud_hub.api.streams.shard_views import LOADING
from weft.cloud_hub.api.streams.summary import StreamPart
from weft.cloud_hub.api.summaries.shard_summary import ShardSummary, Walk, decode, encode
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines.repeats import Repeats, left_out
from weft.storage import hub_keys
from weft.storage.every_shard import missing_shards
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

_logger = logging.getLogger(__name__)
SMALL_LANES_MAX = 512
"""Number of lanes up to which a shard is small: a walk over them takes some 5 ms, and to load it some 10 ms."""
SMALL_LANES_OF_ALL = 8_192
"""Number of lanes of all small shards together: of many shards, each is small with fewer lanes."""
SMALL_AGE_S_MAX = 0.25
"""Maximum age of a small shard's summary, while the shard has no new chunk."""
MAKE_S = 10.0
"""Shortest time between two summaries of a large shard."""
LANES_PER_S = 5_000
"""Number of lanes of large shards that a process walks a second on average: some 5 % of a core. One with 50,000 makes
its summaries each ten seconds, one with 200,000 each 40."""
READ_AGE_S = 5.0
"""Maximum age of what was read from the store."""
STORED_AGE_NS_MAX = 120 * 10**9
"""Age from which on a stored summary is not used: its shard's owner has been killed, or is slow."""
ASKED_S = 300.0
"""Time after a question for which a process that is alone keeps summaries of large shards ready."""
READS_AT_ONCE = 16


class Listed(NamedTuple):
    """The shards for a list."""

    summaries: list[ShardSummary]
    """Those of readable shards, by number."""
    missing: dict[int, str]
    """Numbers of the unreadable shards, with the reasons."""
    now: int
    """Nanoseconds since 1970 by the hub's clock."""

    def view(self) -> View:
        """Return the part of a response that names missing shards, and says as of when it is; nothing if all are there
        and of now."""
        oldest = min((each.at for each in self.summaries), default=self.now)
        as_of = {"as_of": moment(oldest)} if self.now - oldest > 10**9 else {}
        if not self.missing:
            return as_of
        return {**as_of, "missing_shards": [{"shard": shard, "trouble": why} for shard, why in self.missing.items()]}

    def streams(self, tenant: str) -> dict[str, list[StreamPart]]:
        """Return a tenant's streams that are not deleted, by name, each with its parts by shard."""
        found: dict[str, list[StreamPart]] = {}
        for each in self.summaries:
            first = bisect_left(each.streams, (tenant,), key=lambda part: (part.tenant,))
            for at in range(first, len(each.streams)):
                part = each.streams[at]
                if part.tenant != tenant:
                    break
                found.setdefault(part.stream, []).append(part)
        return {name: found[name] for name in sorted(found) if any(part.is_there for part in found[name])}

    @property
    def ages(self) -> dict[int, float]:
        """Return the age of each shard's summary in seconds."""
        return {each.shard: max(0, self.now - each.at) / 1e9 for each in self.summaries}


class _Made(NamedTuple):
    summary: ShardSummary
    at: float


class _Stored(NamedTuple):
    summary: ShardSummary | None
    etag: str
    read_at: float


class ShardSummaries:
    """The summaries of one process. Event loop's thread only.

    Args:
        moments: completeness of streams, with what is known beside the states of lanes.
        others: returns whether other processes are there.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        shards: Shards,
        moments: StreamCompleteness,
        others: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._shards, self._moments, self._others = store, shards, moments, others
        self._monotonic = monotonic
        self._made: dict[int, _Made] = {}
        self._making: dict[int, asyncio.Task[_Made]] = {}
        self._stored: dict[int, _Stored] = {}
        self._etags: dict[int, str] = {}
        self._reading = asyncio.Lock()
        self._asked_at = float("-inf")
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Keep summaries of large shards ready in the background."""
        self._task.start(self._run(), name="shard-summaries")

    async def close(self) -> None:
        """Stop. What is stored is too old for readers soon."""
        await self._task.close()
        for task in list(self._making.values()):
            task.cancel()

    async def own(self) -> Listed:
        """Return the process's own shards. None is missed."""
        return await self._listed(self._shards.own, [])

    async def every(self) -> Listed:
        """Return all shards. Those of other processes whose summary is not in the store are loaded."""
        held = await self._shards.held()
        others = [shard for shard in range(self._shards.count) if shard not in held]
        stored = await self._read(others)
        rest = [shard for shard in others if shard not in stored]
        loaded = await self._shards.these(rest) if rest else []
        return await self._listed([*held.values(), *loaded], list(stored.values()))

    async def _listed(self, sequencers: Iterable[Sequencer], stored: Sequence[ShardSummary]) -> Listed:
        self._asked_at = self._monotonic()
        found, missing = list(stored), dict[int, str]()
        for each in sequencers:
            if each.loaded:
                found.append(await self._local(each))
            else:
                missing[each.log.shard] = each.told or LOADING
        found.sort(key=lambda each: each.shard)
        missing = dict.fromkeys(missing_shards(found), LOADING) | missing
        return Listed(found, missing, self._moments.facts.now)

    async def _local(self, sequencer: Sequencer) -> ShardSummary:
        """Return the summary of a shard that is held here."""
        made, shard = self._made.get(sequencer.log.shard), sequencer.log.shard
        if made is not None and self._is_good(made, sequencer):
            return made.summary
        task = self._making.get(shard)
        if task is None:  # all who ask meanwhile wait for one walk
            task = self._making[shard] = asyncio.create_task(self._make(sequencer), name=f"summary-{shard}")
            task.add_done_callback(lambda _: self._making.pop(shard, None))
        return (await asyncio.shield(task)).summary

    def _is_good(self, made: _Made, sequencer: Sequencer) -> bool:
        age_s = self._monotonic() - made.at
        if len(sequencer.state.lanes) <= self._small_lanes:
            return age_s < SMALL_AGE_S_MAX and made.summary.n == sequencer.state.n
        # A look that comes late makes no request walk.
        return age_s < 2 * self._interval_s and made.summary.n <= sequencer.state.n

    @property
    def _small_lanes(self) -> int:
        return min(SMALL_LANES_MAX, SMALL_LANES_OF_ALL // self._shards.count)

    @property
    def _interval_s(self) -> float:
        small = self._small_lanes
        large = (made.summary.lanes for made in self._made.values() if made.summary.lanes > small)
        return max(MAKE_S, sum(large) / LANES_PER_S)

    async def _make(self, sequencer: Sequencer) -> _Made:
        states = [each.state for each in self._shards if each.loaded]
        begun = [each for stored in self._stored.values() if stored.summary for each in stored.summary.begun]
        walk = Walk(self._moments.facts, self._moments.expected, states, begun)
        at = self._monotonic()
        made = self._made[sequencer.log.shard] = _Made(await walk.summary(sequencer.state), at)
        return made

    async def _read(self, shards: Sequence[int]) -> dict[int, ShardSummary]:
        """Return the usable ones of stored summaries."""
        async with self._reading:
            now = self._monotonic()
            due = [
                each for each in shards if each not in self._stored or now - self._stored[each].read_at >= READ_AGE_S
            ]
            for at in range(0, len(due), READS_AT_ONCE):
                await asyncio.gather(*(self._read_one(shard, now) for shard in due[at : at + READS_AT_ONCE]))
        wall = self._moments.facts.now
        found = {shard: self._stored[shard].summary for shard in shards}
        return {shard: each for shard, each in found.items() if each is not None and self._is_usable(each, wall)}

    def _is_usable(self, summary: ShardSummary, now: int) -> bool:
        """Return whether a stored summary is new enough. One from before a split has edges that moved."""
        halved = {split.shard for split in summary.splits}
        return abs(now - summary.at) < STORED_AGE_NS_MAX and halved.issuperset(self._shards.children(summary.shard))

    async def _read_one(self, shard: int, now: float) -> None:
        known = self._stored.get(shard)
        try:
            found = await self._store.get(hub_keys.summary_key(shard))
            if known is not None and known.summary is not None and known.etag == found.etag:
                self._stored[shard] = known._replace(read_at=now)
                return
            summary = await asyncio.to_thread(decode, found.data)
            self._stored[shard] = _Stored(summary if summary.shard == shard else None, found.etag, now)
        except (NotFound, StoreError, msgspec.MsgspecError, zlib.error, ValueError):
            # Without an object the shard is small, or has no owner at present.
            self._stored[shard] = _Stored(None, "", now)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.say("write", self._monotonic())
                if count is not None:
                    _logger.warning("other processes load shards for lists: %s%s", error, left_out(count))
            except Exception:  # without this task, every list would walk the lanes
                _logger.exception("a summary of a shard could not be made")
            await asyncio.sleep(MAKE_S)

    async def look(self) -> None:
        """Make the summaries of own large shards that are due, and store them if other processes are there.

        Raises:
            StoreError: the store did not answer.
        """
        now, others = self._monotonic(), self._others()
        is_asked = now - self._asked_at < ASKED_S
        held = {each.log.shard for each in self._shards}
        self._made = {shard: made for shard, made in self._made.items() if shard in held}
        if not is_asked:
            self._stored.clear()
        if not others and not is_asked:
            return
        for each in self._shards.own:
            if not each.loaded or len(each.state.lanes) <= self._small_lanes:
                continue
            made = self._made.get(each.log.shard)
            # Nearly as old counts: a look takes place each MAKE_S.
            if made is None or now - made.at >= self._interval_s - MAKE_S / 2:
                summary = (await self._make(each)).summary
                if others:
                    await self._write(summary)

    async def _write(self, summary: ShardSummary) -> None:
        key, data = hub_keys.summary_key(summary.shard), await asyncio.to_thread(encode, summary)
        etag = self._etags.pop(summary.shard, None)
        try:
            self._etags[summary.shard] = (
                await self._store.create(key, data) if etag is None else await self._store.swap(key, data, etag)
            )
        except (AlreadyExists, PreconditionFailed):  # of this shard's earlier owner, or of an attempt without an answer
            with contextlib.suppress(NotFound):
                self._etags[summary.shard] = (await self._store.get(key)).etag  # which the next summary replaces

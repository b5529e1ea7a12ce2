"""Service that runs a tierer for every stream of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Literal

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.config.log_lines import Repeats, left_out
from weft.protocols.chunk_index import Chunk, StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog, first_logs, missing_shards
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import latest_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError, StoreUnfit
from weft.storage.presence import TROUBLES_MAX, Claim, TableOwners, TableTrouble
from weft.storage.table.actions import TableError, TableSize, app_ids
from weft.storage.table.delta_log import TableLog
from weft.storage.table.latest import has_all_rows
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import DEFAULTS, UNDECLARED, NoHistory, TableSettings, TableTerms
from weft.storage.table_writer.shards import ShardView, load_shard, share_memory
from weft.storage.table_writer.tiering import TablePositions, Tierer, first_untabled, tabled_streams
from weft.storage.table_writer.writers import FileWriter

# Turns of streams in the table step: a tenant delays another by at most one bounded step.


class FairScheduler:
    """Schedules turns of streams, some at a time: the tenant with the least used time is next, with its longest waiting
    stream. The remaining streams of a pass come first in the next one.

    Args:
        places: number of turns at a time. One tenant has all except one of them while another one has work.
        seconds_max: time after which a pass begins no further turn.
        monotonic: seconds.
    """

    def __init__(self, places: int, seconds_max: float, monotonic: Callable[[], float]) -> None:
        self._places = places
        self._seconds_max = seconds_max
        self._monotonic = monotonic
        self._waiting: dict[str, deque[StreamKey]] = {}
        self._used: dict[str, float] = {}
        """Seconds used by each tenant since all of them were last without work."""
        self._running: dict[str, int] = {}

    async def run(self, keys: Iterable[StreamKey], turn: Callable[[StreamKey], Awaitable[bool]]) -> bool:
        """Give each stream turns until it needs no more, or the time of a pass is over.

        Args:
            turn: turn of a stream; returns whether it needs another one.

        Returns:
            True if streams need more turns.
        """
        self._enter(keys)
        until = self._monotonic() + self._seconds_max
        tasks: dict[asyncio.Task[bool], tuple[StreamKey, float]] = {}
        try:
            while True:
                # At least one turn in a pass, or the work would never end.
                while len(tasks) < self._places and (self._monotonic() < until or not tasks) and (key := self._take()):
                    tasks[asyncio.create_task(_awaited(turn(key)))] = key, self._monotonic()
                if not tasks:
                    return bool(self._waiting)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    key, began = tasks.pop(task)
                    self._leave(key, self._monotonic() - began)
                    if task.result():
                        # Behind the tenant's other streams: one with a long backlog comes again after each of them has
                        # had a step.
                        self._waiting.setdefault(key[0], deque()).append(key)
                if self._monotonic() >= until and not tasks:
                    return bool(self._waiting)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.clear()

    def _enter(self, keys: Iterable[StreamKey]) -> None:
        wanted = dict.fromkeys(keys)
        left = {tenant: [key for key in queue if key in wanted] for tenant, queue in self._waiting.items()}
        waiting = {tenant: deque(queue) for tenant, queue in left.items() if queue}
        # A tenant without work must not accumulate unused time.
        floor = min((self._used[tenant] for tenant in waiting), default=0.0)
        self._used = {tenant: self._used[tenant] for tenant in waiting}
        for key in wanted.keys() - {key for queue in waiting.values() for key in queue}:
            waiting.setdefault(key[0], deque())
        known = {key for queue in waiting.values() for key in queue}
        for key in wanted:
            if key not in known:
                waiting[key[0]].append(key)
        for tenant in waiting:
            self._used.setdefault(tenant, floor)
        self._waiting = waiting

    def _take(self) -> StreamKey | None:
        """Return the stream of the next turn; None if none may begin now."""
        alone = len(self._waiting.keys() | self._running.keys()) == 1
        # One place is always left to another tenant, whose small stream need not wait for a step of 256 MiB.
        most = self._places if alone else max(1, self._places - 1)
        open_to = [tenant for tenant in self._waiting if self._running.get(tenant, 0) < most]
        if not open_to:
            return None
        # By time used, because time is what tenants share: their records differ in cost.
        tenant = min(open_to, key=lambda each: (self._running.get(each, 0) > 0, self._used[each]))
        queue = self._waiting[tenant]
        key = queue.popleft()
        if not queue:
            del self._waiting[tenant]
        self._running[tenant] = self._running.get(tenant, 0) + 1
        return key

    def _leave(self, key: StreamKey, seconds: float) -> None:
        tenant = key[0]
        self._used[tenant] += seconds
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]


async def _awaited(turn: Awaitable[bool]) -> bool:
    return await turn


# Streams whose new rows are written now: a stream with enough bytes, and all streams at common moments.

FILES_PER_ROUND = 2000
"""Files that a tenant with more than twice as many has in a round on average, one for each stream and shard: at a round
each two minutes in a bucket they cost 220 US dollars a month, however many streams there are."""
WAIT_S_MAX = 1800.0
"""Longest time for which they wait unasked."""


class FlushPolicy:
    """Decides in which rounds a stream's rows become a file.

    The moments are common because a chunk has records of many streams: each chunk that is no longer in memory is read
    once for all of them.

    Args:
        bytes_min: bytes of log from which on a stream does not wait.
        after_s: seconds between the moments; None makes every round one, or one of several for a tenant with many
            streams: a round of all of them then has ``FILES_PER_ROUND`` files on average.
        interval_s: seconds between rounds.
        monotonic: seconds.
    """

    def __init__(
        self, bytes_min: int, after_s: float | None, interval_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._bytes_min = bytes_min
        self._given_s, self._interval_s = after_s, interval_s
        self._monotonic = monotonic
        self._after_s: dict[str, float | None] = {}
        """Time between the moments of each tenant."""
        self._waiting: Counter[StreamKey] = Counter()
        """Bytes of log since a stream's last write. What came before this process did is written in its first round."""
        self._last: dict[str, int] = {}
        """The last moment of each tenant."""
        self._late: set[StreamKey] = set()
        """Streams that have not been written completely since the last moment."""

    def arrived(self, chunk: Chunk) -> None:
        """Count the records of a chunk."""
        for section in chunk.footer.streams:
            self._waiting[section.tenant, section.stream] += section.length

    def is_due(self, key: StreamKey) -> bool:
        """Return whether the rows of a stream are written now."""
        # A stream with many bytes is written by them. Only quiet ones wait, whose files would be small.
        return self._after_s.get(key[0]) is None or key in self._late or self._waiting[key] >= self._bytes_min

    def begin(self, keys: list[StreamKey], shards: int) -> None:
        """Begin a round; in the first one after a tenant's moment, all of its ``keys`` are due."""
        streams = Counter(tenant for tenant, _ in keys)
        # By tenant: many streams of one must not make the tables of another old.
        self._after_s = {tenant: self._time_between(count * shards) for tenant, count in streams.items()}
        now, begun = self._monotonic(), set[str]()
        for tenant, after_s in self._after_s.items():
            # Common moments for all streams: a chunk that has left memory is read once more for all of them, and not
            # once for each.
            if after_s is not None and (moment := int(now // after_s)) != self._last.get(tenant):
                self._last[tenant] = moment
                begun.add(tenant)
        self._late.update(key for key in keys if key[0] in begun)

    def _time_between(self, files: int) -> float | None:
        if self._given_s is not None:
            return self._given_s
        # A thousand quiet streams in 16 shards would write 16,000 files a round, for 1,700 US dollars of requests a
        # month.
        rounds = files // FILES_PER_ROUND
        return None if rounds <= 1 else min(rounds * self._interval_s, WAIT_S_MAX)

    def written(self, key: StreamKey) -> None:
        """Note that all records of a stream are rows."""
        self._waiting.pop(key, None)
        self._late.discard(key)


# The work on the table of each stream, and its status for operators.

LOOK_S = 10.0
"""Interval at which a node reads how far a latest table is that replaces a table of all rows."""


class ShardPosition(msgspec.Struct, frozen=True):
    """The progress of one shard of a stream."""

    shard: int
    table: int
    """Offset below which all records are in the table."""
    log: int
    """Offset after the last one in the log."""


class StoppedRange(msgspec.Struct, frozen=True):
    """Records of one shard that cannot become rows; the shard's later ones wait behind them."""

    shard: int
    first: int
    end: int
    """Offset after the last of them."""
    reason: str


class TableStatus(msgspec.Struct, frozen=True):
    """The status of one stream's table."""

    tenant: str
    stream: str
    version: int
    """Newest table version seen; -1 before the first."""
    shards: list[ShardPosition]
    lag_records: int
    """Records in the log that are not in the table yet."""
    rows_moved: int
    """Rows moved since this node started."""
    committed_at: int | None
    """Time at which this node last moved rows (ns since 1970)."""
    error: str | None
    """Error of the last round; None when it succeeded."""
    stopped: list[StoppedRange]
    made_by: Claim | None = None
    """Maker of the table instead of the hub's processes; None if one of these makes it."""
    process: str | None = None
    """Name of the hub process that makes it; None while unknown, and if another maker does."""
    kind: Literal["all", "latest"] = "all"
    """`all` for the table of all rows, `latest` for the latest table that replaces it."""
    files: int | None = None
    bytes: int | None = None
    """Files of the table and their bytes, as of the last look for small ones; None while unknown."""
    vacuumed_at: int | None = None
    """Time at which a vacuum last ended that removed files, as of that look (ns since 1970); None while unknown."""


class StreamWork:
    """A stream's tierer and the state of its work."""

    is_look = False
    """True if a latest table, which other work makes, replaces the table of all rows."""

    def __init__(self, tierer: Tierer, maintenance: Maintenance) -> None:
        self.tierer = tierer
        self.maintenance = maintenance
        self.committed_at: int | None = None
        self.error: str | None = None

    @property
    def is_over(self) -> bool:
        """Return whether other work has to take its place."""
        return False

    def wants_turn(self, is_due: bool) -> bool:
        """Return whether it has work. ``is_due``: whether new rows are written now."""
        return (is_due and self.tierer.is_behind) or self.error is not None or self.maintenance.is_due

    def trouble(self, tenant: str, stream: str) -> TableTrouble | None:
        """Return what holds up the table, for processes that do not make it; None without any."""
        if self.error is None:
            return None
        stopped = ((each.shard, each.first, each.end, str(each.reason)) for each in self.tierer.stopped.values())
        return TableTrouble(tenant, stream, self.error, tuple(sorted(stopped)))

    def status(
        self, key: StreamKey, made_by: Claim | None, process: str | None, elsewhere: TableTrouble | None = None
    ) -> TableStatus:
        """Return the status for operators.

        Args:
            elsewhere: what the process says that makes the table, if it is another one.
        """
        ends, positions, size = self.tierer.ends(), self.tierer.positions, self.maintenance.size
        shards = [ShardPosition(shard, positions.get(shard, 0), end) for shard, end in sorted(ends.items())]
        return TableStatus(
            *key,
            self.tierer.version,
            shards,
            sum(max(0, item.log - item.table) for item in shards),
            self.tierer.rows_moved,
            self.committed_at,
            self.error if elsewhere is None else elsewhere.error,
            [
                StoppedRange(each.shard, each.first, each.end, each.reason)
                for _, each in sorted(self.tierer.stopped.items())
            ]
            if elsewhere is None
            else [StoppedRange(*each) for each in elsewhere.stopped],
            made_by,
            process,
            "latest" if self.is_look else "all",
            None if size is None or self.is_look else size.files,
            None if size is None or self.is_look else size.bytes,
            None if self.is_look else self.maintenance.vacuumed,
        )


class LatestLook(Tierer):
    """A reader of how far the only table of a stream is, in the place of a maker of the table of all rows.

    Args:
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        stream: StreamKey,
        views: Sequence[ShardView],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(store, cluster, *stream, views, monotonic=monotonic)
        self.key = latest_key(*stream)
        self.log = TableLog(store, self.key, app_ids(cluster.cluster_id, stream[1]))
        self.has_other = False
        """True once a table of all rows was found, which an operator has put back."""
        self._of, self._due_at = (store, stream), monotonic()

    async def look(self) -> None:
        """Read how far the table is, if the last look was long enough ago. Raises as ``Tierer.look``."""
        if self._monotonic() < self._due_at:
            return
        self._due_at = self._monotonic() + LOOK_S
        if await has_all_rows(*self._of):
            self.has_other = True
            return
        await super().look()


class LatestWork(StreamWork):
    """Looks at the only table of a stream.

    Args:
        wanted: whether it is still to be the only one.
    """

    is_look = True

    def __init__(self, look: LatestLook, maintenance: Maintenance, wanted: Callable[[], bool]) -> None:
        super().__init__(look, maintenance)
        self._look, self._wanted = look, wanted

    @property
    def is_over(self) -> bool:
        """Return whether the table of all rows is there again, or is to be made."""
        return self._look.has_other or not self._wanted()


_logger = logging.getLogger(__name__)
EXPECTED = (TableError, StoreError, StoreUnfit, NotFound, CodecError, CollectedPast)
"""Errors of a round that may not occur in the next."""

SLICE_STREAMS = 200
"""Number of streams that are checked without a pause."""


class TableService:
    """A service that finds the streams in the shards' states and moves their rows, a round every ``interval_s``.

    An error of a table or the store does not end it: ``status`` has the error and the next round tries again. Several
    processes may run it on one store: they divide the streams (``TableOwners``), and never double rows.

    Args:
        clock: nanoseconds since 1970.
        is_sound: whether the clock can be believed; otherwise no file is removed as old.
        monotonic: seconds.
        writer: writer of the files elsewhere; then only indexes of chunks are read here. None writes them in this
            process.
        claim: the tables that it makes instead of the hub's nodes; None for one of these.
        name: unique to each start; None for a random one.
        node: name of the hub process, for people.
        follows: whether it also reads how far the tables are that others make. Otherwise it knows only those that it
            makes, or is kept beside.
        terms: what is declared of streams.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        *,
        settings: TableSettings = DEFAULTS,
        clock: Callable[[], int] = time.time_ns,
        is_sound: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
        writer: FileWriter | None = None,
        claim: Claim | None = None,
        name: str | None = None,
        node: str = "",
        follows: bool = True,
        terms: TableTerms = UNDECLARED,
    ) -> None:
        self._store, self._cluster, self._settings = store, cluster, settings
        self._writer, self._claim, self._terms, self._follows = writer, claim, terms, follows
        self._clock, self._is_sound, self._monotonic = clock, is_sound, monotonic
        self._views: list[ShardView] = []
        self._logs = {log.shard: log for log in first_logs(store, cluster)}
        """The logs of the shards, those of splits as soon as the log of the halved shard was read."""
        self._streams: dict[StreamKey, StreamWork] = {}
        self._task = BackgroundTask()
        self._changed = asyncio.Event()
        """Set when other streams may be this process's."""
        own = name or secrets.token_hex(8)
        # Who makes a table is only a hint about who works. The table's version decides, so two that both believe it do
        # no harm.
        self.owners = TableOwners(
            store, own, settings.interval_s, monotonic, self._changed.set, claim=claim, node=node, follows=follows
        )
        self._makes_all = False
        self._round: TablePositions | None = None
        """Positions that were read in ``opened_once``."""
        self._read_at: dict[int, float] = {}
        """Shard -> time at which it was last read up to the head of its log."""
        self._repeats = Repeats()
        self._due = FlushPolicy(settings.write_bytes, settings.write_after_s, settings.interval_s, monotonic)
        self._turns = FairScheduler(settings.streams_at_once, settings.interval_s, monotonic)
        self.made = 0
        """Number of tables that this process makes, as of the last round."""
        self.error: str | None = None
        """Error of the last round's reading of the log; None when it succeeded."""

    def start(self) -> None:
        """Start the rounds."""
        self._task.start(self._run(), name="weft-tables")

    async def close(self) -> None:
        """Stop. A commit in progress may still succeed; the next reader of the table sees its outcome."""
        if await self._task.close():
            await self.owners.close()

    async def catch_up(self) -> None:
        """Run one round over all tables, also those that others make at the moment. Errors go to ``status``."""
        # Another one that makes a table may be dead and still count as alive, and the round would leave it as it is.
        self._makes_all = True
        await self.owners.start(waits=False)
        try:
            await self.run_once()
        finally:
            await self.owners.close()

    @property
    def states(self) -> list[ShardState]:
        """Return the states of the shards read so far. Callers must not change them."""
        return [view.state for view in self._views]

    @property
    def views(self) -> Sequence[ShardView]:
        """Return the shards read so far. Callers must not change them."""
        return self._views

    def keeps_beside(self, key: StreamKey) -> bool:
        """Return whether this node makes tables of a stream that are kept beside the table of all its rows."""
        return self._makes_all or self.owners.keeps_beside(key)

    @property
    def is_running(self) -> bool:
        """Return whether rounds run: from ``start`` to ``close``."""
        return self._task.is_running

    def status(self, limit: int | None = None) -> list[TableStatus]:
        """Return the status of known streams by tenant and name; if they are more than ``limit``, failing ones come
        first."""
        keys = sorted(self._streams)
        if limit is not None and len(keys) > limit:
            keys = sorted(sorted(keys, key=lambda key: self._streams[key].error is None)[:limit])
        return [self._status(key) for key in keys]

    def _status(self, key: StreamKey) -> TableStatus:
        owners = self.owners
        return self._streams[key].status(key, owners.claimed_by(key), owners.process_of(key), owners.trouble_of(key))

    @property
    def count(self) -> int:
        """Return the number of known streams."""
        return len(self._streams)

    @property
    def stopped(self) -> int:
        """Return the number of tables that wait behind records that cannot become rows."""
        return sum(bool(stream.tierer.stopped) for stream in self._streams.values())

    def rows(self, tenant: str, stream: str) -> int | None:
        """Return the number of a stream's records that are table rows, or skipped, as last seen; None while unknown."""
        found = self._streams.get((tenant, stream))
        return sum(found.tierer.positions.values()) if found and found.tierer.positions else None

    def size(self, tenant: str, stream: str) -> TableSize | None:
        """Return files and bytes of a stream's table of all rows, as of the last look for small ones; None while
        unknown."""
        found = self._streams.get((tenant, stream))
        return None if found is None or found.is_look else found.maintenance.size

    def tierer(self, key: StreamKey) -> Tierer | None:
        """Return the maker of a stream's table of all rows; None before that was read, and without one."""
        found = self._streams.get(key)
        return found.tierer if found is not None and found.tierer.version >= 0 and not found.is_look else None

    def position(self, tenant: str, stream: str, shard: int) -> int | None:
        """Return the offset below which all of a shard's records are table rows, as last seen; None while unknown."""
        found = self._streams.get((tenant, stream))
        return found.tierer.positions.get(shard) if found else None

    def positions(self) -> list[tuple[int, float, dict[StreamKey, int]]]:
        """Return shard, monotonic time and next offsets by stream, at the last read of each shard's log."""
        at = self._read_at
        return [(view.shard, at[view.shard], view.state.next_offset) for view in self._views if view.shard in at]

    def table(self, tenant: str, stream: str) -> tuple[TableStatus, list[tuple[str, str]]] | None:
        """Return the status of a stream's table, and name and type of its columns; None before it was read."""
        found = self._streams.get((tenant, stream))
        if found is None or found.tierer.version < 0:
            return None
        return self._status((tenant, stream)), found.tierer.columns

    async def first_untabled(self, shard: int) -> int | None:
        """Return the number of the first chunk of a shard with records that a table lacks; None while the tables are
        not known to be sound. Raises as ``tiering.first_untabled``."""
        view = self._view(shard)
        if view is None or self.error is not None:
            return None
        return await first_untabled(self._round or self._positions(), view.log, view.state, self._in_trouble)

    @contextlib.contextmanager
    def opened_once(self) -> Iterator[None]:
        """Within this context, ``first_untabled`` opens each table once for all shards."""
        self._round = self._positions()
        try:
            yield
        finally:
            self._round = None

    def _positions(self) -> TablePositions:
        def shards(key: StreamKey) -> list[int]:
            return [view.shard for view in self._views if key in view.state.next_offset]

        return TablePositions(self._store, self._cluster, shards)

    def state(self, shard: int) -> ShardState | None:
        """Return a shard's state as of the last round; None before the first. Callers must not change it."""
        view = self._view(shard)
        return None if view is None else view.state

    def _view(self, shard: int) -> ShardView | None:
        return next((view for view in self._views if view.shard == shard), None)

    def error_of(self, key: StreamKey) -> str | None:
        """Return the reason why a stream's table is not being updated; None if it is, as far as this process knows."""
        found = self._streams.get(key)
        if found is None:
            return self.error
        elsewhere = self.owners.trouble_of(key) if found.error is None else None
        return found.error if elsewhere is None else elsewhere.error

    def _in_trouble(self, key: StreamKey) -> bool:
        found = self._streams.get(key)
        return found is None or found.error is not None

    def payload(self, tenant: str, stream: str) -> PayloadKind | None:
        """Return the payload kind of a stream's table; None without a table, or before it was read."""
        found = self._streams.get((tenant, stream))
        return found.tierer.payload if found and found.tierer.version >= 0 else None

    async def run_once(self) -> int:
        """Run one round: continue reading the log, then move rows of every stream. Return their number. Errors go to
        ``status``."""
        moved, more = 0, True
        while more:
            self.error = None
            # The chunks of one pass are in memory until the streams have read their rows from them.
            more = any(await asyncio.gather(*map(self._read_on, list(self._logs.values()))))
            while new := self._adopt_splits():
                await asyncio.gather(*map(self._read_on, new))
            # Without the shard to which a lane moved, its topic levels are not known.
            wanting = [] if missing_shards(self.states) else await self._wanting()
            before = self._rows_moved()
            left = await self._turns.run(wanting, self._turn)
            moved += self._rows_moved() - before
            more = more or left
        for view in self._views:
            view.chunks.clear()
        troubled = (each.trouble(*key) for key, each in self._streams.items() if self._is_ours(key))
        self.owners.publish([*islice((each for each in troubled if each is not None), TROUBLES_MAX)])
        return moved

    def grow(self, cluster: Cluster) -> None:
        """Adopt the shards of tenants that were set apart, from the next round on."""
        new = {log.shard: log for log in first_logs(self._store, cluster) if log.shard not in self._logs}
        self._logs |= new

    def _adopt_splits(self) -> list[ShardLog]:
        """Note the shards that splits have made. Return the logs of new ones."""
        new = {
            split.shard: view.log.new_shard(split)
            for view in self._views
            for split in view.state.splits
            if split.shard not in self._logs
        }
        self._logs |= new
        return list(new.values())

    async def _read_on(self, log: ShardLog) -> bool:
        """Continue reading a shard's log, as much as fits into memory. Return whether there may be more."""
        what = f"the log of shard {log.shard} cannot be read"
        try:
            more = await self._follow(log)
        except EXPECTED as error:
            # Records of the other shards become rows nevertheless.
            self.error = self._told(what, error)
            return False
        self._repeats.forget(what)
        if not more:
            self._read_at[log.shard] = self._monotonic()
        return more

    def _rows_moved(self) -> int:
        return sum(stream.tierer.rows_moved for stream in self._streams.values())

    async def _wanting(self) -> list[StreamKey]:
        """Return the streams with work, found in slices: a hub may have very many."""
        found = dict.fromkeys(key for view in self._views for key in tabled_streams(view.state))
        keys = [key for key in found if self._claim is None or self._claim.covers(key)]
        self._due.begin(keys, len(self._logs))
        # A deleted stream's table has all of it.
        deleted = {key for view in self._views for key in view.state.forgotten}.difference(keys)
        for key in deleted & self._streams.keys():
            del self._streams[key]
        wanting, made = [], 0
        for start in range(0, len(keys), SLICE_STREAMS):
            for key in keys[start : start + SLICE_STREAMS]:
                is_made = self._is_ours(key)
                made += is_made
                # Of several processes on a machine only one follows tables that others make, which is enough for
                # status.
                if not (self._follows or is_made or self.owners.keeps_beside(key)):
                    self._streams.pop(key, None)
                    continue
                stream = self._stream(key)
                if not stream.tierer.is_behind:
                    self._due.written(key)
                if self._wants_turn(key, stream):
                    wanting.append(key)
            # Four thousand streams are looked at in slices, so that links of this process are answered in between.
            await asyncio.sleep(0)
        self.made = made
        return wanting

    def _is_ours(self, key: StreamKey) -> bool:
        return self._makes_all or self.owners.keeps(key)

    def _keeps(self, key: StreamKey) -> bool:
        return self._is_ours(key) and not self._stream(key).is_look

    def _wants_turn(self, key: StreamKey, stream: StreamWork) -> bool:
        if self._keeps(key):
            return stream.wants_turn(self._due.is_due(key))
        return stream.tierer.is_behind  # as far as this process has seen: it looks

    async def _run(self) -> None:
        await self.owners.start()
        while True:
            self._changed.clear()
            try:
                await self.run_once()
            except Exception:
                # A bug in the table step must not end ingest.
                _logger.exception("the table step failed")
                self.error = "internal error; see the log"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._settings.interval_s)

    async def _follow(self, log: ShardLog) -> bool:
        at = next((at for at, view in enumerate(self._views) if view.shard == log.shard), None)
        if at is None:
            # Executors make the rows elsewhere, so that process follows the index alone.
            view = await load_shard(log, whole=self._writer is None)
            view.chunks.seen = self._due.arrived
            self._views.append(view)
            share_memory(self._views)
            return False
        view = self._views[at]
        try:
            return await view.chunks.extend(view.state)
        except CollectedPast:
            # The tierers share the list, so they continue with the new state.
            self._views[at] = view._replace(state=await view.log.load())
            return False

    def _stream(self, key: StreamKey) -> StreamWork:
        known = self._streams.get(key)
        if known is None or known.is_over:
            tierer = Tierer(
                self._store,
                self._cluster,
                *key,
                self._views,
                settings=self._settings,
                clock=self._clock,
                monotonic=self._monotonic,
                writer=self._writer,
                schema=partial(self._terms.schema, key),
                quality=partial(self._terms.quality, key),
                sort=partial(self._terms.sort, key),
                creates=lambda: not self._terms.instead(key),
            )
            maintenance = Maintenance(
                self._store,
                tierer,
                settings=self._settings,
                clock=self._clock,
                is_sound=self._is_sound,
                writer=self._writer,
                sort=partial(self._terms.sort, key),
            )
            self._streams[key] = StreamWork(tierer, maintenance)
        return self._streams[key]

    async def _turn(self, key: StreamKey) -> bool:
        """Do one step of a stream. Return whether it needs another turn."""
        stream, what = self._stream(key), f"the table of {key[0]}/{key[1]} is not being updated"
        before, rows = stream.tierer.done, stream.tierer.rows_moved
        try:
            if self._keeps(key):
                await self._make(key, stream)
            else:
                await stream.tierer.look()
                if not stream.is_look:
                    await stream.maintenance.measure()
            if stream.error is not None:
                _logger.info("the table of %s/%s is being updated again", *key)
                self._repeats.forget(what)
            stream.error = None
        except NoHistory:  # others make the latest table that replaces it
            look = LatestLook(self._store, self._cluster, key, self._views, self._monotonic)
            self._streams[key] = LatestWork(look, Maintenance(self._store, look), partial(self._terms.instead, key))
        except EXPECTED as error:
            stream.error = self._told(what, error)
        except Exception as error:
            # A bug that shows with one stream must not stop the others' tables.
            stream.error = self._told(what, error, _logger.exception)
        finally:
            if stream.tierer.rows_moved > rows:
                stream.committed_at = self._clock()
        # A failing shard must not delay the others.
        return self._keeps(key) and stream.tierer.done > before and stream.tierer.is_behind

    async def _make(self, key: StreamKey, stream: StreamWork) -> None:
        before, why = stream.tierer.done, self._terms.held(key)
        if is_due := self._due.is_due(key) and why is None:
            await stream.tierer.step()
        if not stream.tierer.is_behind:
            self._due.written(key)
        if not is_due or not stream.tierer.is_behind or stream.tierer.done == before:
            # Joining waits until the stream has no new rows to write: fresh rows are worth more than fewer files.
            await stream.maintenance.maintain()
        if why is not None and stream.tierer.is_behind:
            # The tenant is over its quota of table bytes. Rows wait in the log, which is reported as trouble.
            raise TableError(why)

    def _told(self, what: str, error: Exception, say: Callable[..., None] = _logger.warning) -> str:
        # Logged with a limit: a round every few seconds has the same error.
        count = self._repeats.due(what, self._monotonic())
        if count is not None:
            say("%s: %s%s", what, error, left_out(count))
        return str(error) or type(error).__name__

"""Splits of shards: the beginning of a new shard, splits by operators and by load, and shards of tenants set apart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.sequencer import CommitPace, Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols import chunk as chunks
from weft.protocols.chunk_index import (
    APART,
    BLOCKS,
    SPLITS,
    Chunk,
    ChunkHeader,
    Control,
    ControlKind,
    FoldRules,
    StreamBlock,
    index_of,
)
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.shard.fold import apart_body, fold, has_traces
from weft.protocols.shard.placement import BITS_MAX, SHARDS_MAX, SealBody, Split, moving
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog, changed
from weft.storage.cluster import (
    Cluster,
    ClusterCache,
    ClusterUnusable,
    declare_apart,
    declare_split,
    last_turn,
    open_cluster,
    read_cluster,
    take_turn,
)
from weft.storage.hub_keys import ended_prefix, snapshot_key, table_key
from weft.storage.object_store import AlreadyExists, ObjectStore, StoreError

# Beginning of a shard that a split makes: the SEAL record in the halved shard's log, and the new shard's manifest.
#
# Any process may do it, whether others do the same or write to the halved shard meanwhile. A split is declared first
# (``storage.cluster.declare_split``); who needs the new shard then puts it into force, in steps each of which may be
# the last before a crash:
#
# 1. The state with which the new shard begins is stored, as if the SEAL were in the next chunk of the halved shard.
# 2. That chunk is created, or not: the log decides whether, and which of several states counts.
# 3. The new shard gets a manifest that names the state. Its log continues after the SEAL's number.
#
# Nothing is written to a new shard that has no manifest (``storage.chunk_log.NotBegun``).

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 100
"""Maximum number of attempts at chunk numbers that other processes may take first."""
LANES_INLINE = 512
"""Number of lanes up to which the new shard's state is made on the event loop; of more, in a thread."""

Hold = Callable[[int], AbstractAsyncContextManager[object]]
"""Function from a shard to a context in which this process writes no chunk of it."""


def _hold_nothing(shard: int) -> AbstractAsyncContextManager[object]:  # noqa: ARG001
    return contextlib.nullcontext()


class Splitter:
    """Execution of declared splits.

    Args:
        log_of: returns the log of a shard.
        known: the shards as declared.
        wall_clock: nanoseconds since 1970. It raises what makes a call end before anything is written.
        random_bits: for nonces.
        hold: keeps this process from writing the split shard's next chunk.
    """

    def __init__(
        self,
        log_of: Callable[[int], ShardLog],
        known: ClusterCache,
        *,
        wall_clock: Callable[[], int],
        random_bits: Callable[[int], int],
        hold: Hold = _hold_nothing,
    ) -> None:
        self._log_of, self._known = log_of, known
        self._wall_clock, self._random_bits, self._hold = wall_clock, random_bits, hold

    async def begin(self, shard: int) -> None:
        """Make a shard ready to be loaded and written, durably. Do nothing if it has begun, or is one of the first
        shards.

        Raises:
            StoreError: the store did not answer, or other processes took every number first; call again.
            Corrupt, UnsupportedVersion: the split shard cannot be read.
        """
        above = self._known.cluster.tree.parent(shard)
        if above is None or await has_begun(self._log_of(shard)):
            return
        # A shard that was halved twice begins from the outside in: its parent has to be there to be read.
        await self.begin(above)
        log, state = self._log_of(above), None
        for _ in range(ATTEMPTS_MAX):
            try:
                async with self._hold(above):
                    state = await log.load() if state is None else state
                    await log.extend(state)
                    split = await self._next(log, state, shard)
            except CollectedPast:
                state = None
                continue
            if split is not None and await _name(log.new_shard(split), split):
                return
        raise StoreError(f"shard {above}: other processes took {ATTEMPTS_MAX} chunk numbers first: try again")

    async def _next(self, log: ShardLog, state: ShardState, shard: int) -> Split | None:
        """Return the split that made a shard; if the log has none, try to write the shard's next one. The log decides
        whether that succeeded, so the caller reads on."""
        for bit, new in self._known.cluster.tree.children(log.shard):
            split = next((each for each in state.splits if each.shard == new), None)
            if split is None:
                # Halvings of one shard take effect in their order. A later one on the whole state would move edges that
                # belong to the earlier.
                await self._seal(log, state, new, bit)
                return None
            if new == shard:
                return split
        raise AssertionError(f"shard {shard} is not split from {log.shard}")

    async def _seal(self, log: ShardLog, state: ShardState, shard: int, bit: int) -> None:
        # A later release's facts about the moved lanes would be left behind.
        if not state.is_whole or state.extensions:
            raise UnsupportedVersion(f"the log of shard {state.shard} has features of a later release")
        nonce = self._random_bits(64)
        created = max(self._wall_clock(), state.created)
        header = ChunkHeader(
            state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, self._random_bits(64)
        )
        body = msgspec.msgpack.encode(SealBody(shard, bit, nonce))
        block = StreamBlock([], [Control(ControlKind.SEAL, "", "", 0, "", body)], [])
        index = replace(index_of(header, state.fold_level, [], block), must_understand=BLOCKS | SPLITS)
        tail, crc = chunks.encode_footer(index)
        split = fold(state, Chunk(header, index, crc)).split
        assert split is not None, "the chunk splits the shard"
        data = await self._new_state(state, split, created, crc)
        with contextlib.suppress(AlreadyExists):  # also of the state, by a retry: the next attempt has another nonce
            # The state before the SEAL: from the moment the SEAL is in the log, the moved lanes exist only there.
            await log.new_shard(split).put_snapshot(split.n, nonce, data)
            await log.create(header.n, chunks.encode_header(header) + tail)

    @staticmethod
    async def _new_state(state: ShardState, split: Split, created: int, crc: int) -> bytes:
        def make() -> bytes:
            return state.moved_half(split, created, crc).encode()

        return make() if len(state.lanes) <= LANES_INLINE else await asyncio.to_thread(make)


async def has_begun(log: ShardLog) -> bool:
    """Return whether a shard made by a split can be written."""
    return (await log.manifest())[0].snapshot is not None


async def _name(log: ShardLog, split: Split) -> bool:
    """Name the state with which a new shard begins in its manifest. Return whether the shard has begun.

    Chunks up to the SEAL's number count as collected: there are none.
    """
    manifest, etag = await log.manifest()
    if manifest.snapshot is None:
        key = snapshot_key(split.shard, split.n, split.nonce)
        # To readers it is a shard whose chunks up to n were collected, so they need no rule of their own for it.
        if await log.swap_manifest(changed(manifest, snapshot_n=split.n, snapshot=key, watermark=split.n + 1), etag):
            logger.info("shard %d started, split from a shard at chunk %d", split.shard, split.n)
    return await has_begun(log)


# Split of a shard on a person's request: declared, and put into force by the same call.


class CannotSplit(Exception):
    """The shard cannot be split. The message has the reason and advice."""


class Parts(NamedTuple):
    """The edges of a shard that a split moves, and those that stay."""

    moving: list[tuple[str, str]]
    """(tenant, edge) of the edges that move to the new shard."""
    staying: list[tuple[str, str]]


def parts_of(state: ShardState, bit: int) -> Parts:
    """Return which edges with lanes a split of a shard by a bit would move."""
    edges = [edge for edge in state.edge_names() if state.lane_count(*edge)]
    moved = set(moving(edges, bit))
    return Parts(sorted(moved), sorted(edge for edge in edges if edge not in moved))


async def look(store: ObjectStore, cluster: Cluster, shard: int, *, force: bool = False) -> Parts:
    """Return which edges a split of a shard would move. Nothing is written.

    Args:
        force: accept a split in which one of the parts has no edge.

    Raises:
        CannotSplit: there is no such shard, a split has not been completed, or the split would divide no load.
        StoreError: the store did not answer.
        Corrupt: the shard is damaged.
    """
    tree = cluster.tree
    if not 0 <= shard < tree.count:
        raise CannotSplit(f"the hub has no shard {shard}: its shards are 0 to {tree.count - 1}")
    if tree.count >= SHARDS_MAX or tree.next_bit(shard) >= BITS_MAX:
        raise CannotSplit(f"shard {shard} cannot be split further: the hub has {tree.count} shards")
    for new in range(cluster.shards, tree.count):
        if not tree.is_first(new) and not await has_begun(ShardLog(store, cluster, new)):
            raise CannotSplit(
                f"the split of shard {tree.parent(new)} is declared and not done yet: start a hub node, which does it, "
                "then repeat the command"
            )
    state = await ShardLog(store, cluster, shard).load()
    parts = parts_of(state, tree.next_bit(shard))
    # A split cannot be reverted, so one that parts nothing is refused.
    if not force and not (parts.moving and parts.staying):
        (tenant, edge), *others = [*parts.moving, *parts.staying] or [("", "")]
        reason = "it has no edge" if not edge else f"it has only edge {tenant}/{edge}, which is in one shard as a whole"
        reason = f"all its {len(others) + 1} edges would be in one of the two shards" if others else reason
        raise CannotSplit(f"a split of shard {shard} would divide no load: {reason}. Use --force to split it anyway")
    return parts


async def split(
    store: ObjectStore,
    cluster: Cluster,
    shard: int,
    *,
    wall_clock: Callable[[], int],
    random_bits: Callable[[int], int],
) -> int:
    """Split a shard, and return the number of the new one. The hub's nodes complete a declared split whose call was
    interrupted.

    Args:
        cluster: as ``look`` saw it.
        wall_clock: nanoseconds since 1970. It raises what makes the call end before anything is written.
        random_bits: for nonces.

    Raises:
        CannotSplit: another split was declared meanwhile.
        ClusterUnusable: the store has no cluster, or its file is damaged.
        StoreError: the store did not answer.
        Corrupt: the shard is damaged.
    """
    declared = await declare_split(store, shard, cluster)
    if declared.splits != (*cluster.splits, shard):
        raise CannotSplit("another split was declared meanwhile: look at the shards, and repeat the command if needed")
    splitter = Splitter(
        lambda number: ShardLog(store, declared, number),
        ClusterCache(declared),
        wall_clock=wall_clock,
        random_bits=random_bits,
    )
    new = declared.tree.count - 1
    await splitter.begin(new)
    return new


# Setting a tenant apart: it gets a shard of its own, and its objects a prefix of their own in the store.
#
# It is done by a command, whether nodes run or not, while no shard has anything of the tenant. Each step can be the
# last; the same command then continues:
#
# 1. Each shard that might get the tenant's edges says in its log that it takes nothing of the tenant: a chunk with an
#    APART record, made only on a state without a trace of the tenant. A process that writes behind it has folded it.
# 2. ``cluster.json`` names the tenant and the number of its shard, unless another shard was declared meanwhile, of
#    which step 1 knows nothing.
#
# Until the second step the hub refuses the tenant's edges, which try again.
#
# Commands may run side by side, or be suspended and continue: a tenant set apart whose shard was taken back for the
# others would have records in two places. So each call begins with a turn in ``cluster.json``. It writes a record in
# every log under its turn, also in those that say the same already, and looks at the turn between reading a log and
# writing the next chunk. A chunk of an earlier turn then comes before those of a later one, or fails on their chunk
# number.

Turn = tuple[int, str]
"""A turn of ``take_turn``: its number and its tenant."""


class CannotSetApart(Exception):
    """The tenant cannot be set apart, or setting it apart cannot be reverted. The message has the reason and the
    remedy."""


class _Overtaken(Exception):
    """Another call took a turn."""


class Apart:
    """Assignment of shards of their own to tenants.

    Args:
        wall_clock: nanoseconds since 1970. It raises what makes a call end before anything is written.
        random_bits: for nonces.
    """

    def __init__(self, store: ObjectStore, *, wall_clock: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._store, self._wall_clock, self._random_bits = store, wall_clock, random_bits

    async def set(self, tenant: str) -> int:
        """Set a tenant apart, and return the number of its first shard. Do nothing if it already is.

        It reads the state of every shard in turn, and writes a chunk to each.

        Raises:
            CannotSetApart: the store has data of the tenant, a split has not been completed, or there are too many
                shards.
            StoreError: the store did not answer; call again.
            ClusterUnusable, Corrupt, UnsupportedVersion: the store, or a shard of it, cannot be used.
        """
        for _ in range(ATTEMPTS_MAX):
            cluster = await open_cluster(self._store, None)
            if tenant in cluster.tree.apart:
                return cluster.tree.apart[tenant]
            logs = await self._logs(cluster)
            await self._check(cluster, tenant)
            turn = await take_turn(self._store, tenant)
            try:
                await self._leave_out(logs, turn)
            except _Overtaken:
                await self._continue_after(turn)
                continue
            cluster = await declare_apart(self._store, tenant, cluster, turn)
            if tenant in cluster.tree.apart:
                return cluster.tree.apart[tenant]
            await self._continue_after(turn)
        raise StoreError(f"{ATTEMPTS_MAX} other shards were declared meanwhile: try again")

    async def take_back(self, tenant: str) -> None:
        """Let the shards accept a tenant again that an interrupted call of ``set`` has excluded.

        Raises:
            CannotSetApart: the tenant is apart.
            StoreError, ClusterUnusable, Corrupt, UnsupportedVersion: as of ``set``.
        """
        for _ in range(ATTEMPTS_MAX):
            # The tenant may be set apart until this call has its turn, so that is looked at behind it.
            turn = await take_turn(self._store, tenant)
            cluster = await open_cluster(self._store, None)
            if tenant in cluster.tree.apart:
                raise CannotSetApart(
                    f"tenant {tenant} is set apart, with shard {cluster.tree.apart[tenant]}: this cannot be reverted. "
                    "Declare another tenant for what is to be shared"
                )
            try:
                await self._take_back(await self._logs(cluster), turn)
            except _Overtaken:
                await self._continue_after(turn)
                continue
            if (await open_cluster(self._store, None)).splits == cluster.splits:
                return
        raise StoreError(f"{ATTEMPTS_MAX} other shards were declared meanwhile: try again")

    async def _logs(self, cluster: Cluster) -> Sequence[ShardLog]:
        """Return the logs of the shards that have edges of all tenants."""
        tree = cluster.tree
        logs = [ShardLog(self._store, cluster, each) for each in range(tree.count) if tree.tenant_of(each) is None]
        for log in logs:
            if not log.is_first and not await has_begun(log):
                raise CannotSetApart(
                    f"the split of shard {tree.parent(log.shard)} is declared and not done yet: start a hub node, "
                    "which does it, then repeat the command"
                )
        return logs

    async def _check(self, cluster: Cluster, tenant: str) -> None:
        if cluster.tree.count >= SHARDS_MAX:
            raise CannotSetApart(f"the hub has {cluster.tree.count} shards, and can have no more")
        tables = table_key(tenant, "").rstrip("/")
        if there := await self._store.list(tables, limit=1):
            raise CannotSetApart(
                f"the store has a table of tenant {tenant}: {there[0].key}. Only a tenant without data can be set "
                "apart: declare another tenant for it"
            )

    async def _continue_after(self, turn: Turn) -> None:
        """Return if another call for this tenant does not prevent continuing."""
        cluster = await open_cluster(self._store, None)
        last, tenant = await last_turn(self._store)
        if last != turn[0] and tenant == turn[1] and tenant not in cluster.tree.apart:
            raise CannotSetApart(
                f"another command sets tenant {tenant} apart, or reverts that, at the same time. Wait for its end, "
                "then repeat the one that should apply"
            )

    async def _leave_out(self, logs: Sequence[ShardLog], turn: Turn) -> None:
        for log in logs:
            if not await self._set_apart_in(log, turn, apart=True):
                await self._take_back(logs, turn)
                raise CannotSetApart(
                    f"shard {log.shard} has records or lanes of tenant {turn[1]}, which stay where they are. Only a "
                    "tenant without data can be set apart: declare another one"
                )

    async def _take_back(self, logs: Sequence[ShardLog], turn: Turn) -> None:
        for log in logs:
            await self._set_apart_in(log, turn, apart=False)

    async def _set_apart_in(self, log: ShardLog, turn: Turn, *, apart: bool) -> bool:
        """Make a shard's log say whether the shard takes nothing of a tenant. Return false, and write nothing, if the
        shard has something of it."""
        state: ShardState | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                state = await log.load() if state is None else state
                await log.extend(state)
            except CollectedPast:
                state = None
                continue
            # Also lanes that left the state: their edge could return and would be known here under its former numbers.
            if apart and (has_traces(state, turn[1]) or await self._left(log, turn[1])):
                return False
            # Looked at between reading and writing: a command that was suspended must not write behind one that took
            # the tenant back.
            if await last_turn(self._store) != turn:
                raise _Overtaken
            if await self._write(log, state, turn[1], apart=apart):
                return True
        raise StoreError(f"shard {log.shard}: other processes took {ATTEMPTS_MAX} chunk numbers first: try again")

    async def _left(self, log: ShardLog, tenant: str) -> bool:
        """Return whether lanes of a tenant have left a shard's state."""
        return bool(await self._store.list(f"{ended_prefix(log.shard)}/{tenant}", limit=1))

    async def _write(self, log: ShardLog, state: ShardState, tenant: str, *, apart: bool) -> bool:
        """Write the record as the next chunk. Return false if that number is taken: the caller reads on."""
        if not state.is_whole or state.extensions:
            raise UnsupportedVersion(f"the log of shard {state.shard} has features of a later release")
        created = max(self._wall_clock(), state.created)
        header = ChunkHeader(
            state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, self._random_bits(64)
        )
        block = StreamBlock([], [Control(ControlKind.APART, tenant, "", 0, "", apart_body(apart=apart))], [])
        index = replace(index_of(header, state.fold_level, [], block), must_understand=BLOCKS | APART)
        tail, _ = chunks.encode_footer(index)
        try:
            await log.create(header.n, chunks.encode_header(header) + tail)
        except AlreadyExists:
            return False
        return True


# Automatic splits: of a shard that keeps a process of the hub busy for long.

BUSY, PART = 0.7, 0.5
"""Share of a core above which a process is busy, and share of the written bytes from which a shard counts as the
cause."""
SUSTAINED_S = 600.0
"""Time for which both have to hold, since a split cannot be reverted and a backlog after an outage ends by itself."""
SAMPLE_S = 30.0


Noted = Callable[[str, str, str], AbstractAsyncContextManager[None]]
"""Function from act, target and reason to the context that records the act."""


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
        # A split lasts for as long as the store lives, so a burst is no reason for one.
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
    # Several shards that share the work are helped by another process, not by a split.
    return shard if shard is not None and grown[shard] > 0 and grown[shard] >= PART * sum(grown.values()) else None


class Clocks(NamedTuple):
    """Clocks of a process, seconds."""

    monotonic: Callable[[], float]
    processor: Callable[[], float]
    """Processor time of the process."""


class Load:
    """The cores that a process uses between calls."""

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
        declared: called after a split is declared, since the cluster has to be read again.
        noted: records the act; what it raises prevents the split.
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
        logger.warning(
            "shard %d keeps this process busy, and a split would not divide the load: it comes from one edge, or "
            "from edges that stay together",
            shard,
        )
        return False
    why = f"it kept a process busy above {BUSY:.0%} of a core for {SUSTAINED_S / 60:.0f} minutes"
    async with noted("automatic split", f"shard {shard}", why):
        declared = await declare_split(store, shard, cluster)
    if declared.splits != (*cluster.splits, shard):
        return True  # another process was faster, with a shard of its own
    logger.info(
        "shard %d keeps this process busy: it is split, and %d of %d edges move to shard %d",
        shard,
        len(parts.moving),
        len(parts.moving) + len(parts.staying),
        declared.tree.count - 1,
    )
    return True


# Logs and committers of a store's shards in one hub process, of which splits make more while it runs.

Beside = Callable[[Shards], Coroutine[Any, Any, None]]


class ShardMaker:
    """Factory of the log and the committer of each shard.

    Args:
        known: the cluster as the process read it last.
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
        known: ClusterCache,
        settings: SequencerSettings,
        *,
        clock: HubClock,
        random_bits: Callable[[int], int],
        level: Callable[[], int],
        rules: FoldRules,
        moved: Callable[[], None],
        pace: CommitPace,
    ) -> None:
        self._store, self._known, self._settings = store, known, settings
        self._clock, self._random_bits, self._level = clock, random_bits, level
        self._rules, self._moved, self._pace = rules, moved, pace
        self._made: dict[int, Sequencer] = {}
        """The most recent committer of each shard."""
        self._splitter = Splitter(self.log, known, wall_clock=clock.sound, random_bits=random_bits, hold=self._hold)

    def log(self, shard: int) -> ShardLog:
        """Return the log of a shard."""
        return ShardLog(self._store, self._known.cluster, shard, self._clock.boot, rules=self._rules)

    def sequencer(self, shard: int) -> Sequencer:
        """Return a committer of a shard, not started. A shard made by a split begins when it is loaded."""
        made = self._made[shard] = Sequencer(
            self.log(shard),
            self._settings,
            clock=self._clock,
            random_bits=self._random_bits,
            level=self._level,
            load=partial(self._load, shard),
            moved=self._moved,
            pace=self._pace,
        )
        return made

    def beside(
        self, shards_max: int | None, clocks: Clocks, declared: Callable[[], None], noted: Noted
    ) -> Beside | None:
        """Return the background work that splits busy shards; None without ``shards_max``.

        Args:
            declared: called after a split was declared.
            noted: records the act.
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
    """The logs of all shards for one reader, by number. Logs of new shards are appended."""

    def __init__(self, maker: ShardMaker, known: ClusterCache) -> None:
        self._maker, self._known = maker, known
        self._logs: list[ShardLog] = []

    def __iter__(self) -> Iterator[ShardLog]:
        """Iterate over the logs that there are at present."""
        while len(self._logs) < self._known.cluster.tree.count:
            self._logs.append(self._maker.log(len(self._logs)))
        return iter(list(self._logs))

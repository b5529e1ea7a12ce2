"""Setting a tenant apart: it gets a shard of its own, and its objects a prefix of their own in the store.

It is done by a command, whether nodes run or not, while no shard has anything of the tenant. Each step can be the last;
the same command then goes on:

1. Each shard that might get the tenant's edges says in its log that it takes nothing of the tenant: a chunk with an
   APART record, made only on a state without a trace of the tenant. A process that writes behind it has folded it.
2. ``cluster.json`` names the tenant and the number of its shard, unless another shard was declared meanwhile, of which
   step 1 knows nothing.

Until the second step the hub refuses the tenant's edges, which try again.

Commands may run side by side, or be suspended and go on: a tenant set apart whose shard was taken back for the others
would have records in two places. So each call begins with a turn in ``cluster.json``. It writes a record in every log
under its turn, also in those that say the same already, and looks at the turn between reading a log and writing the
next chunk. A chunk of an earlier turn then comes before those of a later one, or fails on their chunk number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.cloud_hub.splits.splitting import ATTEMPTS_MAX, has_begun
from weft.protocols import chunk as chunks
from weft.protocols.chunk import ChunkHeader, Control, ControlKind, StreamBlock, blocked
from weft.protocols.chunk_index.footer import APART, BLOCKS
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.shard.apart import APART_LEVEL, apart_body, has_traces
from weft.protocols.shard.placement import SHARDS_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.cluster import Cluster, declare_apart, last_turn, open_cluster, take_turn
from weft.storage.hub_keys import ended_prefix, table_key
from weft.storage.object_store import AlreadyExists, ObjectStore, StoreError

Turn = tuple[int, str]
"""A turn of ``take_turn``: its number, and the tenant that it is for."""


class CannotSetApart(Exception):
    """The tenant cannot be set apart, or not be taken back. The message has the reason and advice."""


class _Overtaken(Exception):
    """Another call took a turn."""


class Apart:
    """Sets tenants apart.

    Args:
        wall_clock: nanoseconds since 1970. It raises what makes a call end before anything is written.
        random_bits: for nonces.
    """

    def __init__(self, store: ObjectStore, *, wall_clock: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._store, self._wall_clock, self._random_bits = store, wall_clock, random_bits

    async def set(self, tenant: str) -> int:
        """Set a tenant apart, and return the number of its first shard; do nothing if it is apart already.

        It reads the state of every shard, one after the other, and writes a chunk in each.

        Raises:
            CannotSetApart: the cluster's level is too low, the store has something of the tenant, a split is not done,
                or there are too many shards.
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
                await self._go_on_after(turn)
                continue
            cluster = await declare_apart(self._store, tenant, cluster, turn)
            if tenant in cluster.tree.apart:
                return cluster.tree.apart[tenant]
            await self._go_on_after(turn)
        raise StoreError(f"{ATTEMPTS_MAX} other shards were declared meanwhile: try again")

    async def take_back(self, tenant: str) -> None:
        """Let the shards take a tenant again, which a call of ``set`` that did not come to its end has left out.

        Raises:
            CannotSetApart: the tenant is apart.
            StoreError, ClusterUnusable, Corrupt, UnsupportedVersion: as of ``set``.
        """
        for _ in range(ATTEMPTS_MAX):
            if (await open_cluster(self._store, None)).level < APART_LEVEL:
                return
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
                await self._go_on_after(turn)
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
        if cluster.level < APART_LEVEL:
            raise CannotSetApart(
                f"the cluster is at level {cluster.level}, and tenants are set apart from level {APART_LEVEL} on: run "
                "`weft hub finalize` after all nodes run this release"
            )
        if cluster.tree.count >= SHARDS_MAX:
            raise CannotSetApart(f"the hub has {cluster.tree.count} shards, and can have no more")
        tables = table_key(tenant, "").rstrip("/")
        if there := await self._store.list(tables, limit=1):
            raise CannotSetApart(
                f"the store has a table of tenant {tenant}: {there[0].key}. Only a tenant without data can be set "
                "apart: declare another tenant for it"
            )

    async def _go_on_after(self, turn: Turn) -> None:
        """Return if another call for this tenant does not stand against going on."""
        cluster = await open_cluster(self._store, None)
        last, tenant = await last_turn(self._store)
        if last != turn[0] and tenant == turn[1] and tenant not in cluster.tree.apart:
            raise CannotSetApart(
                f"another command sets tenant {tenant} apart, or takes it back, at the same time. Wait for its end, "
                "then repeat the one that should hold"
            )

    async def _leave_out(self, logs: Sequence[ShardLog], turn: Turn) -> None:
        for log in logs:
            if not await self._say(log, turn, apart=True):
                await self._take_back(logs, turn)
                raise CannotSetApart(
                    f"shard {log.shard} has records or lanes of tenant {turn[1]}, which stay where they are. Only a "
                    "tenant without data can be set apart: declare another one"
                )

    async def _take_back(self, logs: Sequence[ShardLog], turn: Turn) -> None:
        for log in logs:
            await self._say(log, turn, apart=False)

    async def _say(self, log: ShardLog, turn: Turn, *, apart: bool) -> bool:
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
            if apart and (has_traces(state, turn[1]) or await self._left(log, turn[1])):
                return False
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
        told = StreamBlock([], [Control(ControlKind.APART, tenant, "", 0, "", apart_body(apart=apart))], [])
        index = replace(blocked(header, max(APART_LEVEL, state.fold_level), [], told), must_understand=BLOCKS | APART)
        tail, _ = chunks.encode_footer(index)
        try:
            await log.create(header.n, chunks.encode_header(header) + tail)
        except AlreadyExists:
            return False
        return True

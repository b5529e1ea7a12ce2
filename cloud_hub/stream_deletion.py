"""Deletion of a stream by an operator (``weft hub stream delete``).

Each shard's log gets a FORGET record after the stream's lanes have left. Their states are stored as separate objects,
so that an edge that sends again sends only records that the hub never had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from weft.cloud_hub.shard.lane_ends import DROPS_MAX, Ending, kept_state, retirement, write_ending
from weft.protocols.chunk_index import CONTROL_BYTES_MAX, Control, ControlKind, StreamKey
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import LaneState, RetiredBy
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import FORGOTTEN_MAX, ForgetBody
from weft.storage.chunk_log import ShardLog, first_logs, load_every_shard
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.actions import TableError
from weft.storage.table_writer.tiering import table_position

QUIET_S = 600
"""Time without a message of any edge after which a stream may be deleted. Edges send something every minute."""
ROUNDS_MORE = 64
"""Number of chunks written to a shard beyond those that its lanes need, before the call gives up because edges
return."""
NAMED_MAX = 10
"""Maximum number of edges that an error names."""
LOOK_INTERVAL_S = 0.5
"""Interval at which a call that waits for the tables looks at them."""
_WHY = "If the table does not get that far, `weft hub status` shows why"
_NS = 1_000_000_000

T = TypeVar("T")


class CannotDelete(Exception):
    """A stream that cannot be deleted now. The message has the remedy."""


class _TableBehind(CannotDelete):
    """A stream whose table lacks the newest records."""


class Deletion(NamedTuple):
    """An operator's request to delete a stream."""

    stream: StreamKey
    by: str
    reason: str
    keeps_tables: bool
    """True when a hub of the store makes tables: a stream with records then has one, or soon will."""
    is_forced: bool = False
    """True to delete although edges may still send."""


class Patience(NamedTuple):
    """The wait for the tables while edges continue sending."""

    wait_s: float
    """Longest wait of the whole call; a round of the tables takes less."""
    say: Callable[[str], None]
    """Reports to the operator, once, what the call waits for."""


class Deleted(NamedTuple):
    """Changes of a call."""

    records: int
    """Records in the log, over all shards that had the stream."""
    lanes: int
    shards: int
    """Number of shards in whose logs this call recorded the deletion."""
    # The table is not moved aside: an object store has no rename, and a process that holds it open would make it again
    # at the old place. These offsets part the two streams exactly.
    ends: dict[int, int]
    """Shard -> offset at which records of a later stream of that name begin; rows of the table below are the deleted
    one's."""


async def delete(
    store: ObjectStore,
    cluster: Cluster,
    wanted: Deletion,
    *,
    wall_clock: Callable[[], int],
    random_bits: Callable[[int], int],
    patience: Patience | None = None,
) -> Deleted:
    """Delete a stream in all shards. An interrupted call can be repeated: each shard is either done or unchanged.

    Args:
        patience: the wait for a table that lacks records; None to raise at once.
        wall_clock: nanoseconds since 1970. It raises what makes the call end before anything is written.
        random_bits: for nonces of chunks.

    Returns:
        The changes of this call; none if the stream is deleted already.

    Raises:
        CannotDelete: there is no such stream, edges still send to it, or its table lacks records.
        StoreError: the store did not answer; call again.
        Corrupt: a shard is damaged.
    """
    key = wanted.stream
    # All shards are looked at before the first is changed.
    found = await load_every_shard(first_logs(store, cluster), frozenset([key]))
    logs, states = [log for log, _ in found], [state for _, state in found]
    if not any(_has(state, key) for state in states):
        if any(key in state.forgotten for state in states):
            return Deleted(0, 0, 0, {state.shard: state.next_offset.get(key, 0) for state in states})
        raise CannotDelete(f"the hub has no stream {key[1]} of tenant {key[0]}: `weft streams` lists the streams")
    if not wanted.is_forced:
        _check_quiet(
            key, {name: held for state in states for name, held in state.stream_lanes(*key).items()}, wall_clock()
        )
    senders = {name: held for state in states for name, held in state.stream_lanes(*key).items()}
    tables = _TableWait(patience, lambda: _last_senders(senders, wall_clock()))
    for log in logs:
        await tables.until_complete(partial(_check_now, store, log, wanted, wall_clock))
    records = lanes = shards = 0
    ends: dict[int, int] = {}
    for log in logs:
        done = await tables.until_complete(
            partial(
                _delete_in,
                store,
                log,
                wanted,
                lambda log, plan: write_ending(log, plan, wall_clock=wall_clock, random_bits=random_bits),
                wall_clock,
            )
        )
        records, lanes, shards = records + done.records, lanes + done.lanes, shards + done.shards
        ends |= done.ends
    return Deleted(records, lanes, shards, ends)


class _TableWait:
    """The wait of one call for the tables.

    Args:
        senders: returns the edges that send, for the error.
    """

    def __init__(self, patience: Patience | None, senders: Callable[[], str]) -> None:
        self._patience, self._senders = patience, senders
        self._until: float | None = None

    async def until_complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat the work, which changes nothing where the table lacks records, until the table has them.

        Raises:
            CannotDelete: as the work; or the table did not have them in time.
        """
        now = asyncio.get_running_loop().time
        while True:
            try:
                return await work()
            except _TableBehind as error:
                if self._patience is None:
                    raise CannotDelete(f"{error}: wait for the next round of the tables. {_WHY}") from None
                if self._until is None:
                    self._until = now() + self._patience.wait_s
                    self._patience.say(
                        f"waiting for the next round of the tables, {self._patience.wait_s:.0f} s at most: {error}"
                    )
                if now() >= self._until:
                    senders = self._senders()
                    faster = f" Edges still send: {senders}. Remove the stream from their configurations." * bool(
                        senders
                    )
                    raise CannotDelete(f"{error}, after {self._patience.wait_s:.0f} s.{faster} {_WHY}") from None
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _check_now(store: ObjectStore, log: ShardLog, wanted: Deletion, wall_clock: Callable[[], int]) -> None:
    await _check(store, log, await log.load(frozenset([wanted.stream])), wanted, wall_clock())


Write = Callable[[ShardLog, Callable[[ShardState], Awaitable[Ending]]], Awaitable[Ending]]


async def _delete_in(
    store: ObjectStore, log: ShardLog, wanted: Deletion, write: Write, wall_clock: Callable[[], int]
) -> Deleted:
    records = lanes = end = 0
    known = await log.load(frozenset([wanted.stream]))
    rounds = ROUNDS_MORE + len(known.stream_lane_names(*wanted.stream)) // DROPS_MAX

    async def plan(state: ShardState) -> Ending:
        nonlocal records, end
        end = state.next_offset.get(wanted.stream, 0)
        if not _has(state, wanted.stream):
            return Ending([], [])
        is_tabled = await _check(store, log, state, wanted, wall_clock())
        records = end
        return _planned(state, wanted, is_tabled=is_tabled)

    for _ in range(rounds):  # a stream's lanes leave some at a time
        ending = await write(log, plan)
        lanes += sum(control.kind == ControlKind.DROP for control in ending.controls)
        if not ending.controls:
            return Deleted(records, lanes, 0, {log.shard: end})
        if ending.controls[-1].kind == ControlKind.FORGET:
            return Deleted(records, lanes, 1, {log.shard: end})
    raise CannotDelete("edges return faster than their lanes leave: remove the stream from their configurations")


def _has(state: ShardState, stream: StreamKey) -> bool:
    """Return whether the shard knows this stream name. Empty streams count toward the tenant's limit."""
    return stream[1] in state.tenant_streams(stream[0])


def _planned(state: ShardState, wanted: Deletion, *, is_tabled: bool) -> Ending:
    found = sorted(state.stream_lane_names(*wanted.stream))
    ending = Ending([], [])
    for lane in found[:DROPS_MAX]:
        # Until the last of them has left, the retirement keeps the stream's open gaps in sight. The stored state is the
        # one before it: the lane returns as it is now.
        ending.controls.append(retirement(lane, RetiredBy.OPERATOR, wanted.reason))
        ending.controls.append(Control(ControlKind.DROP, *lane, b""))
    if len(found) <= DROPS_MAX:
        body = msgspec.msgpack.encode(ForgetBody(wanted.by, wanted.reason, is_tabled))
        ending.controls.append(Control(ControlKind.FORGET, wanted.stream[0], "", 0, wanted.stream[1], body))
    return ending


async def _check(store: ObjectStore, log: ShardLog, state: ShardState, wanted: Deletion, now: int) -> bool:
    """Return whether the table has all of a shard's records of the stream. Raises ``CannotDelete``."""
    key = wanted.stream
    if not _has(state, key):
        return True
    if state.fold_level > state.rules.level:
        raise CannotDelete(f"shard {state.shard} has features of a later release: use the release that the nodes run")
    lanes = state.stream_lanes(*key)
    if not wanted.is_forced:
        _check_quiet(key, lanes, now)
    for lane, held in lanes.items():
        if len(kept_state(lane, held)) > CONTROL_BYTES_MAX:
            raise CannotDelete(f"lane {lane} has too many ranges to be stored: wait until its edge has sent what lacks")
    end = state.next_offset.get(key, 0)
    if end and len(state.forgotten) >= FORGOTTEN_MAX:
        raise CannotDelete(f"shard {state.shard} has {FORGOTTEN_MAX} deleted streams, its limit")
    return await _is_tabled(store, log, wanted, end)


def _check_quiet(key: StreamKey, lanes: dict[Lane, LaneState], now: int) -> None:
    if senders := _last_senders(lanes, now):
        raise CannotDelete(
            f"edges still send to {key[0]}/{key[1]}: {senders}. Remove the stream from their configurations and wait "
            f"{QUIET_S // 60} minutes, or use --force: an edge that sends again brings the stream back"
        )


def _last_senders(lanes: dict[Lane, LaneState], now: int) -> str:
    """Return the names of the edges that were seen lately, and when the last one was; empty without any."""
    seen = {lane.edge: held.last_seen for lane, held in sorted(lanes.items(), key=lambda item: item[1].last_seen)}
    edges = sorted(edge for edge, at in seen.items() if now - at < QUIET_S * _NS)
    if not edges:
        return ""
    more = f" and {len(edges) - NAMED_MAX} more, {len(edges)} in all" if len(edges) > NAMED_MAX else ""
    last = max(0, now - max(seen[edge] for edge in edges)) // _NS
    return f"{', '.join(edges[:NAMED_MAX])}{more}, the last {last} s ago"


async def _is_tabled(store: ObjectStore, log: ShardLog, wanted: Deletion, end: int) -> bool:
    if not end:
        return True
    name = f"{wanted.stream[0]}/{wanted.stream[1]}"
    try:
        position = await table_position(store, log, wanted.stream)
    except StoreUnfit:  # no store for tables
        position = None
    except TableError as error:
        raise CannotDelete(f"the table of {name} cannot be read: {error}") from error
    if position is None and not wanted.keeps_tables:
        return False
    if position is None or position < end:
        raise _TableBehind(
            f"the table of {name} has no rows of offsets {position or 0} to {end - 1} of shard {log.shard} yet"
        )
    return True

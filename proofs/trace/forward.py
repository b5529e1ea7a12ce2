"""Traces forward: from a message to the records that edge functions made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

import msgspec

from weft.proofs.trace.errors import TraceError
from weft.proofs.trace.finding import Row, Wanted
from weft.proofs.trace.narrowing import NOTHING, Narrowing
from weft.proofs.trace.steps import STEPS_MAX, TracedRecord, Tracer, payload_fields, record_of
from weft.proofs.trace.used import Used, parse_source
from weft.protocols.lane import Lane
from weft.protocols.message_headers import SOURCE
from weft.protocols.ranges import SEQ_END
from weft.protocols.shard.shard_state import ShardState


class Made(msgspec.Struct):
    """A record that an edge function made."""

    stream: str
    record: TracedRecord
    of: str
    """Stream of its input records, on the way from the message."""
    is_certain: bool
    """True when the message is certainly among its inputs. Otherwise it is in their range, and only a part of the range
    was used."""


class Forward(msgspec.Struct):
    """Messages, and the records made of them."""

    messages: list[TracedRecord]
    made: list[Made]
    """Records in the order of the steps; within a step by stream and number."""
    more: bool
    """True when there are more than requested."""


class _Frontier:
    """Records of one stream whose successors are searched."""

    def __init__(self, used: Used, rows: Sequence[Row], *, is_certain: bool) -> None:
        self.used, self.rows, self.is_certain = used, {row["_seq"]: row for row in rows}, is_certain

    def reached(self, of: Used, row: Row) -> bool | None:
        """Return whether a row was certainly made of one of the records; None if it was not made of any."""
        if of.stream != self.used.stream or of.last < self.used.first or self.used.last < of.first:
            return None
        if of.count == of.numbers:
            return self.is_certain
        known = [each for seq, each in self.rows.items() if of.first <= seq <= of.last]
        if known and not any(_agree(row, each) for each in known):
            return None
        return False


async def forward(tracer: Tracer, used: Used, reach: timedelta) -> Forward:
    """Return the records of the same edge node that functions made of some of its records, and of these results.

    Args:
        used: the records.
        reach: largest difference between the times of the results and theirs, which bounds the reads of tables and
            chunks.

    Raises:
        TraceError: the hub knows no such lane.
        TableError, CodecError, StoreError: table, log or store cannot be read.
    """
    state, streams, stream = await tracer.lanes_of(used)
    lane = streams.get(stream)
    if lane is None:
        raise TraceError(f"the hub has nothing of stream {stream} of {used.edge}: it stays on its node")
    found = await tracer.find(state, Wanted(lane, used, NOTHING, tracer.left))
    messages = found.rows[: tracer.left]
    result = Forward([record_of(row) for row in messages], [], more=len(found.rows) > tracer.left)
    if not messages:
        return result
    times: list[datetime] = [row["_time"] for row in messages]
    near = Narrowing({}, (min(times) - reach, max(times) + reach))
    frontier = [_Frontier(msgspec.structs.replace(used, stream=stream), messages, is_certain=True)]
    seen: set[tuple[str, int]] = set()
    for _ in range(STEPS_MAX):
        after: list[_Frontier] = []
        for name in sorted(streams):
            rows = await _made_of(tracer, (state, streams[name]), near, frontier, seen)
            result.more |= len(rows) > tracer.left
            rows = rows[: tracer.left]
            tracer.left -= len(rows)
            for row, of, is_certain in rows:
                result.made.append(Made(name, record_of(row), of, is_certain))
                seq = row["_seq"]
                seen.add((name, seq))
                own = Used(used.edge, used.log, seq, seq, 1, name)
                after.append(_Frontier(own, [row], is_certain=is_certain))
        frontier = after
        if frontier and not tracer.left:
            result.more = True
        if not frontier or not tracer.left:
            break
    return result


async def _made_of(
    tracer: Tracer,
    place: tuple[ShardState, Lane],
    near: Narrowing,
    frontier: Sequence[_Frontier],
    seen: Set[tuple[str, int]],
) -> list[tuple[Row, str, bool]]:
    """Return the records of a lane that were made of the frontier's: row, input stream, certainty."""
    state, lane = place
    made: dict[int, tuple[str, bool]] = {}

    def is_made(row: Row) -> bool:
        text = dict(row["_headers"]).get(SOURCE) if row.get("_headers") else None
        if text is None or (lane.stream, row["_seq"]) in seen:
            return False
        for of in parse_source(text, row["_edge"], row["_log"]):
            reached = [known for each in frontier if (known := each.reached(of, row)) is not None]
            if reached:
                made[row["_seq"]] = of.stream, any(reached)
        return row["_seq"] in made

    used = Used(lane.edge, frontier[0].used.log, 0, SEQ_END - 1, 1)
    found = await tracer.find(state, Wanted(lane, used, near, tracer.left, is_made))
    return [(row, *made[row["_seq"]]) for row in found.rows]


def _agree(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether a row and a message agree in all names that they share: levels of topics, or fields of the row."""
    if row["_key"] == message["_key"]:
        return True
    names = {**_levels(row), **payload_fields(record_of(dict(row)).payload)}
    levels = _levels(message)
    shared = [name for name in names if name in levels]
    if shared:
        return all(names[name] == levels[name] for name in shared)
    return not _is_topic(row, message)


def _is_topic(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether the key of a row looks like a topic of another device, as for a window with one group per
    device."""
    return str(row["_key"]).count("/") == str(message["_key"]).count("/") > 0


def _levels(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in row.items()
        if not name.startswith("_") and name != "payload" and isinstance(value, str)
    }  # fmt: skip

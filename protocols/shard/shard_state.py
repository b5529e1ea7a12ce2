"""State of one hub shard: a pure fold over the indexes of its chunks (docs/reference/formats/shard-state.md).

``fold.fold`` computes the effect of chunk n+1 and changes nothing; ``accept`` applies it. Every hub node that has read
chunk n holds the same state. A snapshot is the encoded state; it saves reading the log from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    LEVEL_MAX,
    RELEASE,
    Chunk,
    ClockUpdate,
    Extension,
    FoldRules,
    StreamKey,
    StreamSection,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, NodeName, Origin
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import PENDING_MARKS_MAX, LaneState, OpenGap, RetireBody, earliest, lane_of
from weft.protocols.shard.placement import Split, is_moving, moving
from weft.protocols.shard.snapshot import (
    APART,
    FIELDS_MAX,
    SPLITS,
    BootClock,
    DecodedSnapshot,
    Forgotten,
    LogClocks,
    Skip,
    Snapshot,
    StreamSnapshot,
)

# Bytes of each edge's texts in a shard's state: updated with each lane, so that a look-up is quick.

ORIGIN_BYTES = 64
"""Bytes charged for an origin, beside its texts and hash."""


def topic_bytes(topics: Iterable[str]) -> int:
    """Return the bytes charged for topic patterns."""
    return sum(len(topic.encode()) for topic in topics)


def origin_bytes(origins: Iterable[Origin]) -> int:
    """Return the bytes charged for origins."""
    return sum(ORIGIN_BYTES + len(each.name.encode()) + len(each.version.encode()) + len(each.hash) for each in origins)


class EdgeTexts:
    """Bytes of the topic patterns and of the origins of all lanes of each edge."""

    __slots__ = ("_origins", "_topics")

    def __init__(self) -> None:
        self._topics: Counter[NodeName] = Counter()
        self._origins: Counter[NodeName] = Counter()

    def topics(self, node: NodeName) -> int:
        """Return the bytes of an edge's topic patterns."""
        return self._topics[node]

    def origins(self, node: NodeName) -> int:
        """Return the bytes of an edge's origins."""
        return self._origins[node]

    def changed(self, lane: Lane, before: LaneState | None, after: LaneState | None) -> None:
        """Note a lane's new state; None if it has none. The cost is that of the texts of both states."""
        node = NodeName(lane.tenant, lane.edge)
        for counted, size in ((self._topics, _topics_of), (self._origins, _origins_of)):
            more = size(after) - size(before)
            if more:
                counted[node] += more
                if not counted[node]:
                    del counted[node]


def _topics_of(held: LaneState | None) -> int:
    return topic_bytes(held.topics) if held is not None and held.topics else 0


def _origins_of(held: LaneState | None) -> int:
    return origin_bytes(held.origins) if held is not None and held.origins else 0


# Changes that a chunk makes to a shard's state.

BOOTS_MAX = 64
"""Maximum number of boots of a log whose clocks are kept; the one with the oldest notice is dropped first."""

LogKey = tuple[str, str, int]
"""(tenant, edge, log id)."""


@dataclass(slots=True)
class Folded:
    """Changes that a chunk makes to a state. Valid for the state that computed it, until that state accepts a chunk."""

    chunk: Chunk
    created: int
    """Time of the chunk; it goes back only by a TIME record."""
    sections: Sequence[StreamSection]
    lanes: dict[Lane, LaneState | None] = field(default_factory=dict)
    """Lanes that change; None for one that leaves."""
    others: set[Lane] = field(default_factory=set)
    """Those of them that do more than continue (``LaneState.grown``)."""
    fields: dict[StreamKey, dict[str, str]] = field(default_factory=dict)
    skips: dict[StreamKey, list[Skip]] = field(default_factory=dict)
    open_gaps: dict[StreamKey, list[OpenGap]] = field(default_factory=dict)
    clocks: dict[LogKey, list[BootClock]] = field(default_factory=dict)
    forgotten: dict[StreamKey, Forgotten] = field(default_factory=dict)
    """Streams that leave, without lanes after the chunk."""
    extensions: dict[int, object] = field(default_factory=dict)
    """Results of the extensions' ``look``, by number."""
    drops: int = 0
    split: Split | None = None
    """The split of the shard that the chunk makes; its lanes leave without being dropped."""
    apart: frozenset[str] | None = None
    """Tenants of which the shard takes nothing from the chunk on; None for no change."""

    @property
    def moves(self) -> bool:
        """Return whether edges have another shard from the chunk on."""
        return self.split is not None or self.apart is not None

    def new_epochs(self, lanes: Mapping[Lane, LaneState]) -> list[Lane]:
        """Return the lanes whose epoch differs from the one in ``lanes``."""
        if not self.others:
            return []
        changed = ((lane, self.lanes[lane], lanes.get(lane)) for lane in self.lanes if lane in self.others)
        return [lane for lane, held, old in changed if held and (old is None or old.epoch != held.epoch)]


__all__ = [
    "BOOTS_MAX",
    "FIELDS_MAX",
    "LEVEL_MAX",
    "PENDING_MARKS_MAX",
    "RELEASE",
    "Extension",
    "FoldRules",
    "Folded",
    "LaneState",
    "RetireBody",
    "ShardState",
    "StreamKey",
    "earliest",
    "lane_of",
]
_NO_NAMES: dict[str, None] = {}


class ShardState:
    """The fold up to chunk ``n``.

    Args:
        only: the streams that the state follows: it knows nothing of the others, nor clocks and extensions, and makes
            no snapshot. None for all.
    """

    __slots__ = (
        "_edges",
        "_extensions",
        "_names",
        "_stopped",
        "_streams",
        "_tenants",
        "apart",
        "clocks",
        "cluster_id",
        "conflicts",
        "created",
        "drops",
        "fields",
        "fold_level",
        "footer_crc",
        "forgotten",
        "lanes",
        "n",
        "next_offset",
        "only",
        "open_gaps",
        "retired",
        "rules",
        "shard",
        "skips",
        "splits",
        "texts",
    )

    def __init__(
        self, cluster_id: bytes, shard: int, rules: FoldRules = RELEASE, only: frozenset[StreamKey] | None = None
    ) -> None:
        self.only = only
        self.cluster_id = cluster_id
        self.shard = shard
        self.rules = rules
        self.n = -1
        """Number of the last chunk applied; -1 when the log is empty (its first chunk is 0)."""
        self.footer_crc = 0
        self.created = 0
        """Creation time of the last chunk; it goes back only by a TIME record."""
        self.fold_level = FIRST_LEVEL
        """Highest level in the log."""
        self.drops = 0
        """Number of lanes that have left the state."""
        self.next_offset: dict[StreamKey, int] = {}
        self.lanes: dict[Lane, LaneState] = {}
        """Lanes by name. Only ``set_lane`` may change it. Its states are replaced, never changed."""
        self.conflicts: dict[Lane, None] = {}
        """Lanes whose log a second node claims to own."""
        self.clocks: dict[LogKey, list[BootClock]] = {}
        """Clocks of the boots of each log, the one with the newest notice at the end."""
        self._extensions: dict[int, object] = {}
        self.skips: dict[StreamKey, list[Skip]] = {}
        self.open_gaps: dict[StreamKey, list[OpenGap]] = {}
        """Open gaps of lanes that have left the state, and of nodes that an operator rejected."""
        self.forgotten: dict[StreamKey, Forgotten] = {}
        """Streams that an operator deleted, and that had records. Of these the state has the next offset and skips."""
        self.splits: list[Split] = []
        """Splits of this shard: it takes nothing of the edges that they moved."""
        self.apart: frozenset[str] = frozenset()
        """Tenants of which this shard takes nothing: they have shards of their own."""
        self.retired: dict[Lane, None] = {}
        """Lanes that no longer count."""
        self.texts = EdgeTexts()
        """Bytes of the topic patterns and origins of each edge."""
        self._stopped: dict[StreamKey, dict[Lane, None]] = {}
        """Lanes whose edges sent a last word."""
        self.fields: dict[StreamKey, dict[str, str]] = {}
        """Named topic levels of each stream, in the order in which the log first named them, each with the edge that
        named it first."""
        self._streams: dict[StreamKey, dict[Lane, None]] = {}
        self._edges: dict[tuple[str, str], dict[Lane, None]] = {}
        self._tenants: dict[str, int] = {}
        self._names: dict[str, dict[str, None]] = {}

    @property
    def is_whole(self) -> bool:
        """Return whether this release keeps all of the log's features. If not, a snapshot would lose the others."""
        return self.fold_level <= self.rules.level and self.only is None

    @property
    def extensions(self) -> Mapping[int, object]:
        """Return the objects of extensions that have begun, by number."""
        return self._extensions

    def extension(self, number: int) -> object:
        """Return the object of an extension that the release knows; a new one before the extension has begun."""
        found = self._extensions.get(number)
        return self.rules.extensions[number].load(None) if found is None else found

    def accept(self, folded: Folded) -> None:
        """Apply the changes that ``fold`` returned."""
        chunk = folded.chunk
        for section in folded.sections:
            self.next_offset[section.tenant, section.stream] = section.base_offset + section.count
        # In the order of the chunk, which the order of lanes in memory follows.
        for lane in [lane for lane in folded.lanes if lane in folded.others] if folded.others else ():
            self.set_lane(lane, folded.lanes[lane])
        if len(folded.others) < len(folded.lanes):
            left = folded.drops > 0
            changed = {lane: held for lane, held in folded.lanes.items() if held is not None} if left else folded.lanes
            self.lanes.update(cast("dict[Lane, LaneState]", changed))
        self.fields.update(folded.fields)
        self.skips.update(folded.skips)
        self.open_gaps.update(folded.open_gaps)
        for stream, forgotten in folded.forgotten.items():
            self._forget(stream, forgotten)
        self.clocks.update(folded.clocks)
        for number, change in folded.extensions.items():
            held = self._extensions[number] = self.extension(number)
            self.rules.extensions[number].accept(held, change)
        if folded.split is not None:
            self.splits.append(folded.split)
        if folded.apart is not None:
            self.apart = folded.apart
        self.drops += folded.drops
        self.fold_level = max(self.fold_level, chunk.footer.fold_level)
        self.created = folded.created
        self.n = chunk.header.n
        self.footer_crc = chunk.footer_crc

    def _forget(self, stream: StreamKey, forgotten: Forgotten) -> None:
        for held in (self.fields, self.open_gaps, self._streams, self._stopped):
            held.pop(stream, None)
        self._names.get(stream[0], {}).pop(stream[1], None)
        if stream in self.next_offset:
            self.forgotten[stream] = forgotten

    def knows_clock(self, clock: ClockUpdate) -> bool:
        """Return whether the state holds this notice of a boot's clock."""
        boots = self.clocks.get((clock.tenant, clock.edge, clock.log_id), ())
        return BootClock(clock.boot_id, clock.monotonic, clock.offset, clock.error) in boots

    def boot_clock(self, tenant: str, edge: str, log_id: int, boot_id: int) -> ClockUpdate | None:
        """Return the newest notice of a boot's clock; None without one."""
        for boot in self.clocks.get((tenant, edge, log_id), ()):
            if boot.boot_id == boot_id:
                return ClockUpdate(tenant, edge, log_id, boot.boot_id, boot.monotonic, boot.offset, boot.error)
        return None

    def set_lane(self, lane: Lane, held: LaneState | None) -> None:
        """Replace a lane's state; None removes the lane, and its log's clocks with the log's last lane."""
        if self.conflicts:
            self.conflicts.pop(lane, None)
        if held is not None and held.conflict is not None:
            self.conflicts[lane] = None
        self._note_end(lane, held)
        before = self.lanes.get(lane)
        # By identity, which is quick: a fold that changes neither keeps the same lists.
        if held is None or before is None or held.topics is not before.topics or held.origins is not before.origins:
            self.texts.changed(lane, before, held)
        if held is not None and before is not None:  # nearly always
            self.lanes[lane] = held
            return
        stream, edge = (lane.tenant, lane.stream), (lane.tenant, lane.edge)
        if held is not None:
            self._streams.setdefault(stream, {})[lane] = None
            self._edges.setdefault(edge, {})[lane] = None
            self._tenants[lane.tenant] = self._tenants.get(lane.tenant, 0) + 1
            self._names.setdefault(lane.tenant, {})[lane.stream] = None
            if self.forgotten:
                self.forgotten.pop(stream, None)
            self.lanes[lane] = held
        elif self.lanes.pop(lane, None) is not None:
            del self._streams[stream][lane]
            del self._edges[edge][lane]
            self._tenants[lane.tenant] -= 1
            log = (lane.tenant, lane.edge, lane.log_id)
            if log in self.clocks and not any(other.log_id == lane.log_id for other in self._edges[edge]):
                del self.clocks[log]

    def _note_end(self, lane: Lane, held: LaneState | None) -> None:
        """Note whether a lane is retired, and whether it has a last word."""
        if held is not None and held.retired is not None:
            self.retired[lane] = None
        elif self.retired:
            self.retired.pop(lane, None)
        if held is not None and held.last_word is not None:
            self._stopped.setdefault((lane.tenant, lane.stream), {})[lane] = None
        elif self._stopped:
            self._stopped.get((lane.tenant, lane.stream), {}).pop(lane, None)

    def stream_fields(self, tenant: str, stream: str) -> list[str]:
        """Return the named topic levels of a stream over all its lanes. The list only grows, at its end."""
        return list(self.fields.get((tenant, stream), ()))

    def stream_lanes(self, tenant: str, stream: str) -> dict[Lane, LaneState]:
        """Return the lanes of a stream in this shard."""
        return {lane: self.lanes[lane] for lane in self._streams.get((tenant, stream), ())}

    def stopped_lanes(self, tenant: str, stream: str) -> list[Lane]:
        """Return the lanes of a stream in this shard whose edges sent a last word."""
        return list(self._stopped.get((tenant, stream), ()))

    def stream_lane_names(self, tenant: str, stream: str) -> list[Lane]:
        """Return the names of the lanes of a stream in this shard, without reading their states."""
        return list(self._streams.get((tenant, stream), ()))

    def tenant_streams(self, tenant: str) -> KeysView[str]:
        """Return a view of a tenant's streams, also those without lanes now, but no deleted ones. Valid until the next
        change."""
        return self._names.get(tenant, _NO_NAMES).keys()

    def has_stream(self, tenant: str, stream: str) -> bool:
        """Return whether the shard has records or lanes of a stream that is not deleted."""
        key = tenant, stream
        return (key in self.next_offset and key not in self.forgotten) or bool(self._streams.get(key))

    def edge_lanes(self, tenant: str, edge: str) -> dict[Lane, LaneState]:
        """Return the lanes of an edge in this shard, of all its logs."""
        return {lane: self.lanes[lane] for lane in self._edges.get((tenant, edge), ())}

    def edge_lane_names(self, tenant: str, edge: str) -> list[Lane]:
        """Return the names of the lanes of an edge in this shard, without reading their states."""
        return list(self._edges.get((tenant, edge), ()))

    def edge_names(self) -> list[tuple[str, str]]:
        """Return (tenant, edge) of the shard's edges, also of some whose last lane left, without reading lanes."""
        return list(self._edges)

    def lane_count(self, tenant: str, edge: str | None = None) -> int:
        """Return the number of lanes of a tenant, or of one of its edges, in this shard."""
        return self._tenants.get(tenant, 0) if edge is None else len(self._edges.get((tenant, edge), ()))

    def moved_half(self, split: Split, created: int, footer_crc: int) -> ShardState:
        """Return the state with which the new shard of a split begins: at ``split.n``, with the edges that move. It
        shares the lanes' states with this one, which must be at chunk ``split.n - 1``, with all streams.

        Offsets begin at 0, so skips and deletions of streams remain where the records are.

        Args:
            created: time of chunk ``split.n``.
            footer_crc: of that chunk, which the new shard's first chunk continues.
        """
        new = ShardState(self.cluster_id, split.shard, self.rules)
        new.n, new.footer_crc, new.created = split.n, footer_crc, created
        new.fold_level, new.drops, new.apart = self.fold_level, self.drops, self.apart
        edges = sorted(moving(self._edges, split.bit))
        for edge in edges:
            for lane, held in sorted(self.edge_lanes(*edge).items()):
                new.set_lane(lane, held)
                key = lane.tenant, lane.stream
                if key in self.fields:
                    new.fields[key] = self.fields[key]
        moved = set(edges)
        new.clocks.update((log, boots) for log, boots in self.clocks.items() if log[:2] in moved)
        for key, gaps in self.open_gaps.items():
            if own := [gap for gap in gaps if is_moving(key[0], gap.edge, split.bit)]:
                new.open_gaps[key] = own
        return new

    def encode(self) -> bytes:
        """Encode the state as a snapshot. One state has one encoding."""
        return self.freeze()()

    def freeze(self) -> Callable[[], bytes]:
        """Return a function that encodes the present state, in any thread, independently of later changes."""
        if self.only is not None:
            raise ValueError("a snapshot of some streams would lose the others")
        # Shallow copies are enough: the fold replaces the values in the tables, and never changes them.
        lanes = dict(self.lanes)
        skips, open_gaps = dict(self.skips), {key: gaps for key, gaps in self.open_gaps.items() if gaps}
        forgotten, splits, apart = dict(self.forgotten), list(self.splits), sorted(self.apart)
        streams = {key: self.next_offset.get(key, 0) for key in {*self.next_offset, *self.fields, *open_gaps}}
        fields, clocks = dict(self.fields), dict(self.clocks)
        extensions = {each: self.rules.extensions[each].freeze(held) for each, held in sorted(self._extensions.items())}
        head = self.cluster_id, self.shard, self.n, self.footer_crc
        folded = self.rules.level, self.fold_level, self.created, self.drops

        def encode() -> bytes:
            lines = [
                StreamSnapshot(*key, streams[key], list(named), list(named.values()), *rest, forgotten.get(key))
                for key in sorted(streams)
                for named, rest in ((fields.get(key, {}), (skips.get(key, []), open_gaps.get(key, []))),)
            ]
            known = [LogClocks(*key, clocks[key]) for key in sorted(clocks)]
            kept = {number: encoded() for number, encoded in extensions.items()}
            needs = (SPLITS if splits else 0) | (APART if apart else 0)
            snapshot = Snapshot(*head, needs, *folded, lines, known, kept, splits, apart)
            return snapshots.encode(snapshot, list(lanes.items()))

        return encode

    @classmethod
    def decode(cls, data: Buffer, rules: FoldRules = RELEASE, only: frozenset[StreamKey] | None = None) -> ShardState:
        """Decode a snapshot.

        Args:
            only: as of the state.

        Raises:
            Truncated: the bytes end before the snapshot does.
            UnsupportedVersion: written by a later release, or (``PreRelease``) before the first one.
            Corrupt: not a snapshot, a checksum that does not match, or bytes after its end; or an earlier release made
                it without features that this one keeps.
        """
        return cls.of(snapshots.decode(data, only), rules, only)

    @classmethod
    def of(
        cls, decoded: DecodedSnapshot, rules: FoldRules = RELEASE, only: frozenset[StreamKey] | None = None
    ) -> ShardState:
        """Return the state of a decoded snapshot. Raises as ``decode``."""
        snapshot, lanes = decoded
        if snapshot.made_with < min(snapshot.fold_level, rules.level):
            raise Corrupt(
                f"it was made at fold level {snapshot.made_with}, the log had reached {snapshot.fold_level}: it lacks "
                "what later releases keep"
            )
        state = cls(snapshot.cluster_id, snapshot.shard, rules, only)
        state.n, state.footer_crc, state.created = snapshot.n, snapshot.footer_crc, snapshot.created
        state.fold_level, state.drops, state.splits = snapshot.fold_level, snapshot.drops, list(snapshot.splits)
        state.apart = frozenset(snapshot.apart)
        for stream in snapshot.streams:
            if stream.forgotten is None:
                state._names.setdefault(stream.tenant, {})[stream.stream] = None
            else:
                state.forgotten[stream.tenant, stream.stream] = stream.forgotten
            if stream.next_offset:
                state.next_offset[stream.tenant, stream.stream] = stream.next_offset
            if stream.fields:
                state.fields[stream.tenant, stream.stream] = dict(zip(stream.fields, stream.named_by, strict=False))
            if stream.skips:
                state.skips[stream.tenant, stream.stream] = stream.skips
            if stream.open_gaps:
                state.open_gaps[stream.tenant, stream.stream] = stream.open_gaps
        for lane, held in lanes:
            state.set_lane(lane, snapshots.lane_state(held))
        for log in snapshot.clocks:
            state.clocks[log.tenant, log.edge, log.log_id] = log.boots
        if only is None:
            kept = snapshot.extensions
            state._extensions = {
                each: rules.extensions[each].load(kept[each]) for each in kept if each in rules.extensions
            }
        return state

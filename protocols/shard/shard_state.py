"""State of one hub shard: a pure fold over the indexes of its chunks (docs/reference/formats/shard-state.md).

``ShardState.fold`` computes the effect of chunk n+1 and changes nothing; ``accept`` applies it. Every hub node that has
read chunk n holds the same state. A snapshot is the encoded state; it saves reading the log from the start.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping
from dataclasses import dataclass, field

from weft.protocols.batch import Buffer
from weft.protocols.chunk_footer import (
    LEVEL_MAX,
    RELEASE,
    Chunk,
    ClockUpdate,
    Control,
    ControlKind,
    Extension,
    FoldRules,
    LaneFlag,
    LaneUpdate,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.edge_texts import EdgeTexts
from weft.protocols.shard.lane_controls import controlled
from weft.protocols.shard.lane_state import PENDING_MARKS_MAX, LaneState, RetireBody, earliest, lane_of
from weft.protocols.shard.open_gaps import OpenGap, after_control
from weft.protocols.shard.snapshot import FIELDS_MAX, BootClock, LogClocks, Skip, Snapshot, StreamSnapshot
from weft.protocols.topics import named_levels

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
BOOTS_MAX = 64
"""Maximum number of boots of a log whose clocks are kept; the one with the oldest notice is dropped first."""

StreamKey = tuple[str, str]
"""(tenant, stream)."""
LogKey = tuple[str, str, int]
"""(tenant, edge, log id)."""
_PARTIAL, _RELAY = int(LaneFlag.PARTIAL), int(LaneFlag.RELAY)
_NO_NAMES: dict[str, None] = {}


@dataclass(slots=True)
class Folded:
    """Changes that a chunk makes to a state. Valid for the state that computed it, until that state accepts a chunk."""

    chunk: Chunk
    lanes: dict[Lane, LaneState | None] = field(default_factory=dict)
    """Lanes that change; None for one that leaves."""
    fields: dict[StreamKey, dict[str, str]] = field(default_factory=dict)
    skips: dict[StreamKey, list[Skip]] = field(default_factory=dict)
    open_gaps: dict[StreamKey, list[OpenGap]] = field(default_factory=dict)
    clocks: dict[LogKey, list[BootClock]] = field(default_factory=dict)
    extensions: dict[int, bytes] = field(default_factory=dict)
    drops: int = 0

    def new_epochs(self, lanes: Mapping[Lane, LaneState]) -> list[Lane]:
        """Return the lanes whose epoch differs from the one in ``lanes``."""
        changed = ((lane, held, lanes.get(lane)) for lane, held in self.lanes.items())
        return [lane for lane, held, old in changed if held and (old is None or old.epoch != held.epoch)]


class ShardState:
    """The fold up to chunk ``n``."""

    __slots__ = (
        "_edges", "_fields", "_names", "_stopped", "_streams", "_tenants", "clocks", "cluster_id", "conflicts",
        "created", "drops", "extensions", "fold_level", "footer_crc", "lanes", "n", "next_offset", "open_gaps",
        "retired", "rules", "shard", "skips", "texts",
    )  # fmt: skip

    def __init__(self, cluster_id: bytes, shard: int, rules: FoldRules = RELEASE) -> None:
        self.cluster_id = cluster_id
        self.shard = shard
        self.rules = rules
        self.n = -1
        """Number of the last chunk applied; -1 when the log is empty (its first chunk is 0)."""
        self.footer_crc = 0
        self.created = 0
        """Creation time of the last chunk; it never goes back."""
        self.fold_level = 1
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
        self.extensions: dict[int, bytes] = {}
        self.skips: dict[StreamKey, list[Skip]] = {}
        self.open_gaps: dict[StreamKey, list[OpenGap]] = {}
        """Open gaps of lanes that have left the state, and of nodes that an operator rejected."""
        self.retired: dict[Lane, None] = {}
        """Lanes that no longer count."""
        self.texts = EdgeTexts()
        """Bytes of the topic patterns and origins of each edge."""
        self._stopped: dict[StreamKey, dict[Lane, None]] = {}
        """Lanes whose edges sent a last word."""
        self._fields: dict[StreamKey, dict[str, str]] = {}
        self._streams: dict[StreamKey, dict[Lane, None]] = {}
        self._edges: dict[tuple[str, str], dict[Lane, None]] = {}
        self._tenants: dict[str, int] = {}
        self._names: dict[str, dict[str, None]] = {}

    @property
    def is_whole(self) -> bool:
        """Return whether this release keeps all of the log's features. If not, a snapshot would lose the others."""
        return self.fold_level <= self.rules.level

    def apply(self, chunk: Chunk) -> None:
        """Apply chunk ``n + 1``. A refused chunk changes nothing.

        Raises:
            Corrupt: as ``fold``.
        """
        self.accept(self.fold(chunk))

    def fold(self, chunk: Chunk) -> Folded:
        """Return the effect of chunk ``n + 1`` on the state, which is not changed.

        Raises:
            Corrupt: it is not the next chunk of this shard's history, an offset does not continue its stream, it holds
                records that the shard has already, or a control record does not fit.
        """
        self._check(chunk)
        folded = Folded(chunk)
        for control in chunk.footer.controls:
            self._fold_control(folded, control)
        for update in chunk.footer.lanes:
            self._fold_lane(folded, update)
        for clock in chunk.footer.clocks:
            log = (clock.tenant, clock.edge, clock.log_id)
            boots = folded.clocks.get(log, self.clocks.get(log, []))
            others = [boot for boot in boots if boot.boot_id != clock.boot_id]
            found = BootClock(clock.boot_id, clock.monotonic, clock.offset, clock.error)
            folded.clocks[log] = [*others, found][-BOOTS_MAX:]
        for number, data in chunk.footer.extensions.items():
            if number in self.rules.extensions:
                kept = self.extensions.get(number)
                folded.extensions[number] = self.rules.extensions[number].fold(kept, data)
        return folded

    def accept(self, folded: Folded) -> None:
        """Apply the changes that ``fold`` returned."""
        chunk = folded.chunk
        for section in chunk.footer.streams:
            self.next_offset[section.tenant, section.stream] = section.base_offset + section.count
        for lane, held in folded.lanes.items():
            self.set_lane(lane, held)
        self._fields.update(folded.fields)
        self.skips.update(folded.skips)
        self.open_gaps.update(folded.open_gaps)
        self.clocks.update(folded.clocks)
        self.extensions.update(folded.extensions)
        self.drops += folded.drops
        self.fold_level = max(self.fold_level, chunk.footer.fold_level)
        self.created = max(self.created, chunk.header.created)
        self.n = chunk.header.n
        self.footer_crc = chunk.footer_crc

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

    def _check(self, chunk: Chunk) -> None:
        header = chunk.header
        if (header.cluster_id, header.shard, header.n) != (self.cluster_id, self.shard, self.n + 1):
            raise Corrupt(
                f"expected chunk {self.n + 1} of shard {self.shard}, cluster {self.cluster_id.hex()}; found chunk "
                f"{header.n} of shard {header.shard}, cluster {header.cluster_id.hex()}"
            )
        if header.previous_footer_crc != self.footer_crc:
            raise Corrupt(f"chunk {header.n} of shard {self.shard} continues another history")
        for section in chunk.footer.streams:
            expected = self.next_offset.get((section.tenant, section.stream), 0)
            if section.base_offset != expected:
                raise Corrupt(
                    f"chunk {header.n}: {section.tenant}/{section.stream} starts at offset {section.base_offset}, "
                    f"{expected} is the next"
                )

    def _fold_control(self, folded: Folded, control: Control) -> None:
        if control.kind == ControlKind.SKIP:
            key, created = (control.tenant, control.stream), max(self.created, folded.chunk.header.created)
            known = folded.skips.get(key, self.skips.get(key, []))
            folded.skips[key] = snapshots.with_skip(known, control.body, self.next_offset.get(key, 0), created)
            return
        lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
        held = folded.lanes[lane] if lane in folded.lanes else self.lanes.get(lane)
        created = max(self.created, folded.chunk.header.created)
        new = controlled(control, lane, held, created, folded.chunk.header.n)
        if new is held:
            return
        folded.lanes[lane] = new
        if new is None:
            folded.drops += 1
        key = lane.tenant, lane.stream
        gaps = folded.open_gaps.get(key, self.open_gaps.get(key, []))
        kept = list(after_control(gaps, lane, held, new, created))
        if kept != gaps:
            folded.open_gaps[key] = kept

    def _fold_lane(self, folded: Folded, update: LaneUpdate) -> None:
        lane, partial = lane_of(update), bool(update.flags & _PARTIAL)
        known = folded.lanes[lane] if lane in folded.lanes else self.lanes.get(lane)
        if lane in folded.lanes and known is None:
            raise Corrupt(f"chunk {folded.chunk.header.n} drops {lane} and adds to it")
        held = LaneState(partial=partial) if known is None else known.successor()
        held.partial &= partial
        held.hear(update)
        # A relay claims no epoch, so it must not fence the edge's own sessions.
        if not update.flags & _RELAY:
            held.epoch = max(held.epoch, update.epoch)
        doubled = held.take(update.ranges, update.gaps, update.mark)
        if doubled is not None:
            here = f"chunk {folded.chunk.header.n}"
            raise Corrupt(f"{here} holds [{doubled[0]}, {doubled[1]}) of {lane} a second time")
        if update.topics is not None:
            held.topics = update.topics
            self._fold_fields(folded, lane, update.topics)
        if update.payload is not None:
            held.payload = update.payload
        if update.origins:
            held.add_origins(update.origins)
        # Never back: the clock of this chunk's writer may be behind that of the last one's.
        held.last_seen = max(self.created, folded.chunk.header.created)
        folded.lanes[lane] = held

    def _fold_fields(self, folded: Folded, lane: Lane, topics: list[str]) -> None:
        stream = (lane.tenant, lane.stream)
        fields = folded.fields.get(stream, self._fields.get(stream, {}))
        more = snapshots.with_levels(fields, lane.edge, named_levels(topics))
        if more is not fields:
            folded.fields[stream] = more

    def stream_fields(self, tenant: str, stream: str) -> list[str]:
        """Return the named topic levels of a stream over all its lanes. The list only grows, at its end."""
        return list(self._fields.get((tenant, stream), ()))

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
        """Return a view of a tenant's streams, also those without lanes now. Valid until the next change."""
        return self._names.get(tenant, _NO_NAMES).keys()

    def edge_lanes(self, tenant: str, edge: str) -> dict[Lane, LaneState]:
        """Return the lanes of an edge in this shard, of all its logs."""
        return {lane: self.lanes[lane] for lane in self._edges.get((tenant, edge), ())}

    def edge_names(self) -> list[tuple[str, str]]:
        """Return (tenant, edge) of the shard's edges, also of some whose last lane left, without reading lanes."""
        return list(self._edges)

    def lane_count(self, tenant: str, edge: str | None = None) -> int:
        """Return the number of lanes of a tenant, or of one of its edges, in this shard."""
        return self._tenants.get(tenant, 0) if edge is None else len(self._edges.get((tenant, edge), ()))

    def encode(self) -> bytes:
        """Encode the state as a snapshot. One state has one encoding."""
        return self.freeze()()

    def freeze(self) -> Callable[[], bytes]:
        """Return a function that encodes the present state, in any thread, independently of later changes."""
        # Shallow copies are enough: the fold replaces the values in the tables, and never changes them.
        lanes = dict(self.lanes)
        skips, open_gaps = dict(self.skips), {key: gaps for key, gaps in self.open_gaps.items() if gaps}
        streams = {key: self.next_offset.get(key, 0) for key in {*self.next_offset, *self._fields, *open_gaps}}
        fields, clocks, extensions = dict(self._fields), dict(self.clocks), dict(self.extensions)
        head = self.cluster_id, self.shard, self.n, self.footer_crc
        folded = self.rules.level, self.fold_level, self.created, self.drops

        def encode() -> bytes:
            told = [
                StreamSnapshot(
                    *key, streams[key], list(named), list(named.values()), skips.get(key, []), open_gaps.get(key, [])
                )
                for key in sorted(streams)
                for named in (fields.get(key, {}),)
            ]
            known = [LogClocks(*key, clocks[key]) for key in sorted(clocks)]
            kept = {number: extensions[number] for number in sorted(extensions)}
            return snapshots.encode(Snapshot(*head, 0, *folded, told, [], known, kept), sorted(lanes.items()))

        return encode

    @classmethod
    def decode(cls, data: Buffer, rules: FoldRules = RELEASE) -> ShardState:
        """Decode a snapshot.

        Raises:
            Truncated: the bytes end before the snapshot does.
            UnsupportedVersion: written by a later release.
            Corrupt: not a snapshot, a checksum that does not match, or bytes after its end; or an earlier release made
                it without features that this one keeps.
        """
        snapshot = snapshots.decode(data)
        if snapshot.made_with < min(snapshot.fold_level, rules.level):
            raise Corrupt(
                f"it was made at fold level {snapshot.made_with}, the log had reached {snapshot.fold_level}: it lacks "
                "what later releases keep"
            )
        state = cls(snapshot.cluster_id, snapshot.shard, rules)
        state.n, state.footer_crc, state.created = snapshot.n, snapshot.footer_crc, snapshot.created
        state.fold_level, state.drops = snapshot.fold_level, snapshot.drops
        for stream in snapshot.streams:
            state._names.setdefault(stream.tenant, {})[stream.stream] = None
            if stream.next_offset:
                state.next_offset[stream.tenant, stream.stream] = stream.next_offset
            if stream.fields:
                state._fields[stream.tenant, stream.stream] = dict(zip(stream.fields, stream.named_by, strict=False))
            if stream.skips:
                state.skips[stream.tenant, stream.stream] = stream.skips
            if stream.open_gaps:
                state.open_gaps[stream.tenant, stream.stream] = stream.open_gaps
        for lane in snapshot.lanes:
            state.set_lane(Lane(lane.tenant, lane.edge, lane.log_id, lane.stream), snapshots.lane_state(lane))
        for log in snapshot.clocks:
            state.clocks[log.tenant, log.edge, log.log_id] = log.boots
        kept = snapshot.extensions
        state.extensions = {number: kept[number] for number in kept if number in rules.extensions}
        return state

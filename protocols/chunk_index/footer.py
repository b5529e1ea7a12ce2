"""Footer of a chunk: the index of its sections, and the input of the hub's state (docs/reference/formats/chunk.md).

A release adds optional information as a field at an end, or as an extension. Information that a reader has to
understand gets a bit of ``must_understand``: a reader that does not know the bit stops instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from weft.protocols.errors import UnsupportedVersion
from weft.protocols.fields import LIST_ITEMS_MAX, U32, U64, Epoch, Nanoseconds, Seq, StoredRanges, Topics
from weft.protocols.origin import Origin

StreamKey = tuple[str, str]
"""(tenant, stream)."""
HEADER_BYTES = 56
"""Bytes of the chunk's fixed header, behind which the first section starts."""
ORIGINS_MAX = 1024
"""Maximum number of origins that a lane resolves; the state keeps those with the highest numbers."""
CONTROL_BYTES_MAX = 1 << 20
"""Longest body of a control record."""
BLOCKS = 1
"""Bit of ``must_understand``: the index has a block for each stream (level 2)."""
SPLITS = 2
"""Bit of ``must_understand``: the chunk has a SEAL record (level 3)."""
APART = 4
"""Bit of ``must_understand``: the chunk has an APART record (level 4)."""
UNDERSTOOD = BLOCKS | SPLITS | APART
"""Bits of ``must_understand`` that this release knows."""

BLOCKS_LEVEL = 2
"""Fold level from which on chunks have a block for each stream."""
LEVEL_MAX = 4
"""Fold level of this release: the highest level that it writes and that its fold keeps."""


class ChunkHeader(NamedTuple):
    """The fixed header of a chunk."""

    cluster_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """16 random bytes of the cluster."""
    n: Seq
    created: Seq
    """Nanoseconds since 1970 by the writer's clock, never before that of the previous chunk, except with a TIME
    record."""
    shard: U32
    previous_footer_crc: U32
    """CRC-32C of chunk n-1's footer (0 for the first): a chain that reveals a chunk from another history."""
    nonce: U64
    """Random number of an attempt, by which a writer distinguishes its own earlier attempt from another node's."""


class StreamSection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk's records of one (tenant, stream): offsets [base_offset, base_offset + count)."""

    tenant: str
    stream: str
    base_offset: Seq
    count: Seq
    first_time: Nanoseconds
    last_time: Nanoseconds
    position: Seq
    """Byte of the chunk where the section starts."""
    length: Seq
    crc: U32
    """CRC-32C of the section's bytes."""


class GapRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records [first, end) that the sender of a lane does not have, and the reason
    (``protocols.segment.GapReason``)."""

    first: Seq
    end: Seq
    reason: U32


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A statement that everything the edge received up to ``time`` (its wall clock, ns) has a sequence number below
    ``seq``."""

    time: Nanoseconds
    seq: Seq


class LaneFlag(IntFlag):
    """Properties of a chunk's addition to a lane. The bits are persisted; a reader ignores unknown ones."""

    PARTIAL = 1
    """The sender was asked for a part of the lane: its missing records are not gaps, and the lane does not count for
    completeness."""
    RELAY = 2
    """Another hub relayed this; it claims no epoch."""
    LAST_WORD = 4
    """The edge has stopped in order: it appends nothing more before it opens the lane again. Only together with a
    mark."""


class LaneUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk's addition to one lane. Entries name lanes by their index in the footer's list of these."""

    tenant: str
    edge: str
    log_id: U64
    stream: str
    epoch: Epoch
    ranges: StoredRanges
    """Sequence numbers whose records this chunk holds, half-open, ascending."""
    gaps: Annotated[list[GapRange], Meta(max_length=LIST_ITEMS_MAX)]
    mark: Mark | None
    topics: Topics | None
    """The stream's topic patterns at that edge, if the chunk is the first with them or they changed; otherwise None."""
    payload: U32 | None = None
    """The stream's payload kind at that edge (``protocols.payloads``), if first declared or changed; otherwise None."""
    origins: Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)] = []
    """The origins that batches of the lane name in this chunk, and others when new or changed."""
    floor: Mark | None = None
    """A mark that the lane had before this chunk, if a batch of the chunk contradicts it: the clock stepped back. Rows
    from number ``seq`` on with times up to ``time`` are ``stepped``."""
    flags: U32 = 0
    """``LaneFlag`` bits."""


class ControlKind(IntEnum):
    """Kinds of control records. The numbers are persisted; a reader skips unknown ones."""

    SCHEMA = 1
    CONFIG = 2
    RETIRE = 3
    """The lane leaves completeness."""
    ADOPT = 4
    """The lane counts again, or gets back the numbers that it had when it was dropped."""
    SEAL = 5
    """The edges of one half of the shard move to a new shard. From level 3 on, and alone in its chunk."""
    DROP = 6
    """The lane leaves the state."""
    CONFLICT = 7
    """A second node claims to own the lane's log: the lane's moment does not advance until an ADOPT."""
    SKIP = 8
    """An operator skips offsets of a stream in its table: their records cannot become rows."""
    FORGET = 9
    """An operator deletes a stream, whose lanes have left: the state keeps its next offset and its skips."""
    TIME = 10
    """An operator lowers the time of the shard, which a wrong clock wrote. From level 2 on."""
    APART = 11
    """The shard takes nothing of a tenant, which gets a shard of its own. From level 4 on, and alone in its chunk."""


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A record of the hub's log that is not device data, about a lane or another object that its names identify.
    Applied before the chunk's lanes, in order."""

    kind: U32
    tenant: str
    edge: str
    log_id: U64
    stream: str
    body: Annotated[bytes, Meta(max_length=CONTROL_BYTES_MAX)]
    """Msgpack; its form depends on the kind."""


class ClockUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A finding about the clock of one boot of an edge. A batch has the reading of the boot's monotonic clock at its
    first record: that reading plus ``offset`` is the time of the record, independent of the wall clock."""

    tenant: str
    edge: str
    log_id: U64
    boot_id: U64
    monotonic: Nanoseconds
    """Moment of the finding, by the boot's monotonic clock."""
    offset: Nanoseconds
    """Time minus the boot's monotonic clock."""
    error: Nanoseconds
    """Bound on the offset's error."""


class ChunkFooter(msgspec.Struct, frozen=True, array_like=True):
    """The index of a chunk, with all its information for the hub's state."""

    header: ChunkHeader
    """A copy of the header's fields: one GET of the tail reads the whole index."""
    must_understand: U64
    """Bits of the features that a reader has to know to read the chunk at all."""
    fold_level: U32
    """The highest level in the log so far."""
    streams: Annotated[list[StreamSection], Meta(max_length=LIST_ITEMS_MAX)]
    lanes: Annotated[list[LaneUpdate], Meta(max_length=LIST_ITEMS_MAX)]
    controls: Annotated[list[Control], Meta(max_length=LIST_ITEMS_MAX)] = []
    clocks: Annotated[list[ClockUpdate], Meta(max_length=LIST_ITEMS_MAX)] = []
    extensions: dict[U32, bytes] = {}
    """Additions of later releases, each under a number of its own. A reader skips unknown ones."""

    only: ClassVar[None] = None
    """The same as ``BlockedFooter.only``: this form has all lanes of the chunk."""

    def lanes_of(self, section: StreamSection) -> Sequence[LaneUpdate]:  # noqa: ARG002
        """Return the lanes that the section's entries name by their index."""
        return self.lanes

    def clocks_of(self, section: StreamSection) -> Sequence[ClockUpdate]:  # noqa: ARG002
        """Return the clock notices that correct the times of the section's records."""
        return self.clocks


class StreamBlock(NamedTuple):
    """A chunk's statements about one (tenant, stream), besides the place of its section."""

    lanes: list[LaneUpdate]
    controls: list[Control]
    clocks: list[ClockUpdate]


@dataclass(frozen=True)
class BlockedFooter:
    """The index of a chunk of level 2: as ``ChunkFooter``, with one block for each (tenant, stream), so that a reader
    of one stream decodes one block."""

    header: ChunkHeader
    fold_level: int
    streams: list[StreamSection]
    blocks: dict[StreamKey, StreamBlock]
    """The decoded blocks, in the order of the chunk."""
    cluster_controls: list[Control] = field(default_factory=list)
    """Control records of no stream. They take effect first."""
    extensions: dict[int, bytes] = field(default_factory=dict)
    only: frozenset[StreamKey] | None = None
    """The streams whose blocks were wanted, and ``streams`` are theirs; None for all."""
    must_understand: int = BLOCKS

    @cached_property
    def lanes(self) -> list[LaneUpdate]:
        """Return the lanes of all decoded blocks."""
        return [lane for block in self.blocks.values() for lane in block.lanes]

    @cached_property
    def controls(self) -> list[Control]:
        """Return the control records, in the order in which they take effect."""
        return [*self.cluster_controls, *(each for block in self.blocks.values() for each in block.controls)]

    @cached_property
    def clocks(self) -> list[ClockUpdate]:
        """Return the clock notices of all decoded blocks. Those of one boot may repeat."""
        return [clock for block in self.blocks.values() for clock in block.clocks]

    def lanes_of(self, section: StreamSection) -> Sequence[LaneUpdate]:
        """Return the lanes that the section's entries name by their index."""
        return self.blocks[section.tenant, section.stream].lanes

    def clocks_of(self, section: StreamSection) -> Sequence[ClockUpdate]:
        """Return the clock notices that correct the times of the section's records."""
        return self.blocks[section.tenant, section.stream].clocks


ChunkIndex = ChunkFooter | BlockedFooter
"""The index of a chunk, in the form of either level."""


def blocked(  # noqa: PLR0917
    header: ChunkHeader,
    level: int,
    sections: list[StreamSection],
    told: StreamBlock,
    clocks: Mapping[StreamKey, list[ClockUpdate]] = MappingProxyType({}),
    extensions: Mapping[int, bytes] = MappingProxyType({}),
) -> BlockedFooter:
    """Return an index of level 2.

    Args:
        level: at least ``BLOCKS_LEVEL``.
        told: lanes and control records of any streams. The lanes of each keep their order.
        clocks: by stream.
    """
    blocks = {(each.tenant, each.stream): StreamBlock([], [], []) for each in sections}
    for lane in told.lanes:
        blocks.setdefault((lane.tenant, lane.stream), StreamBlock([], [], [])).lanes.append(lane)
    for control in told.controls:
        if control.stream:
            blocks.setdefault((control.tenant, control.stream), StreamBlock([], [], [])).controls.append(control)
    for stream, known in clocks.items():
        blocks.setdefault(stream, StreamBlock([], [], [])).clocks.extend(known)
    cluster = [control for control in told.controls if not control.stream]
    return BlockedFooter(header, level, sections, blocks, cluster, dict(extensions))


class Chunk(NamedTuple):
    """A chunk's index."""

    header: ChunkHeader
    footer: ChunkIndex
    footer_crc: int


class Extension(NamedTuple):
    """An addition to chunks and to the fold, with a level of its own. It owns an object in each shard's state."""

    level: int
    """The level at which it begins: nodes write it when the cluster has reached that level."""
    load: Callable[[bytes | None], Any]
    """Function from the object's bytes in a snapshot to the object; None for a new one."""
    write: Callable[[Any, Sequence[LaneUpdate]], bytes | None]
    """Function from the object and a chunk's additions to lanes to the extension's bytes in the chunk; None for no
    bytes."""
    look: Callable[[Any, bytes], object]
    """Function from the object, which it does not change, and a chunk's bytes to the change."""
    accept: Callable[[Any, Any], None]
    """Applies a change that ``look`` returned to the object."""
    freeze: Callable[[Any], Callable[[], bytes]]
    """Returns a function that encodes the present object, in any thread, independently of later changes."""


class FoldRules(NamedTuple):
    """Rules by which a release writes and folds chunks."""

    level: int = LEVEL_MAX
    extensions: Mapping[int, Extension] = {}
    """Extensions that the release knows, by number. This release has none."""


RELEASE = FoldRules()
"""The rules of this release."""


def check_understood(needed: int, known: int, what: str) -> None:
    """Refuse data with features that must be understood and are unknown.

    Args:
        needed: bits that the writer set.
        known: bits that this release knows.
        what: name of the data with the bits, with its article.

    Raises:
        UnsupportedVersion: there is a bit that this release does not know.
    """
    if needed & ~known:
        raise UnsupportedVersion(f"{what} needs features {needed & ~known:#x} of a later release")

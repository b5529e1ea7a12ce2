"""Changes that a chunk makes to a shard's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.protocols.chunk_index.footer import Chunk, StreamKey, StreamSection
from weft.protocols.lane import Lane
from weft.protocols.shard.forgotten import Forgotten
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.open_gaps import OpenGap
from weft.protocols.shard.snapshot import BootClock, Skip
from weft.protocols.shard.splits import Split

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

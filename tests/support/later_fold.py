"""A made-up extension of a later release, whose fold counts the records of chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.protocols.chunk_index import LEVEL_MAX, Extension, FoldRules, LaneUpdate

COUNTED = 40
"""Number of the extension."""


@dataclass
class Tally:
    """What the extension keeps of a shard."""

    count: int

    @classmethod
    def load(cls, data: bytes | None) -> Tally:
        return cls(int.from_bytes(data or b"", "little"))

    def write(self, lanes: Sequence[LaneUpdate]) -> bytes | None:
        records = sum(end - first for lane in lanes for first, end in lane.ranges)
        return records.to_bytes(8, "little") if records else None

    def look(self, data: bytes) -> int:
        return self.count + int.from_bytes(data, "little")

    def accept(self, count: int) -> None:
        self.count = count

    def freeze(self) -> Callable[[], bytes]:
        count = self.count
        return lambda: count.to_bytes(8, "little")


def counting(level: int) -> Extension:
    """The extension, as of a level."""
    return Extension(level, Tally.load, Tally.write, Tally.look, Tally.accept, Tally.freeze)


LATER = FoldRules(LEVEL_MAX + 1, {COUNTED: counting(LEVEL_MAX + 1)})
"""A made-up later release."""

"""What one file is between two syncs, and what of it a power cut may leave."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeVar

SECTOR_BYTES = 512
"""Writes tear at these boundaries."""

T = TypeVar("T")


@dataclass(slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(slots=True)
class Resize:
    length: int


Change = Write | Resize


@dataclass(eq=False, slots=True)
class Inode:
    """A file's content: as processes see it, as the platter has it, and what lies between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)
    synced: int = 0
    """Changes that are durable."""
    unreadable: tuple[int, int] = (0, 0)
    """The device cannot read these bytes."""

    def change(self, change: Change) -> None:
        apply(self.live, change)
        self.unsynced.append(change)

    @property
    def changes(self) -> int:
        """How many there were since the file was made: a sync that begins now answers for so many."""
        return self.synced + len(self.unsynced)

    def sync(self, changes: int | None = None) -> None:
        """Make all changes durable, or the oldest so many since the file was made."""
        count = len(self.unsynced) if changes is None else max(0, changes - self.synced)
        for change in self.unsynced[:count]:
            apply(self.durable, change)
        del self.unsynced[:count]
        self.synced += count

    def after_power_cut(self, chance: random.Random) -> Inode:
        """What the platter has when the power is back: of the unsynced changes any part, in any order, torn."""
        content = bytearray(self.durable)
        for change in survivors(self.unsynced, chance):
            if isinstance(change, Resize):
                apply(content, change)
                continue
            if chance.random() < 0.2:
                # The new length reached the disk before the bytes did.
                apply(content, Resize(max(len(content), change.offset + len(change.data))))
            for part in survivors(sectors(change), chance):
                apply(content, part)
        return Inode(content, bytearray(content), unreadable=self.unreadable)


def apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Resize):
        del content[change.length :]
        content.extend(bytes(change.length - len(content)))
        return
    end = change.offset + len(change.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.data


def sectors(write: Write) -> list[Change]:
    """A write as the parts that reach the disk whole or not at all."""
    first = SECTOR_BYTES - write.offset % SECTOR_BYTES
    if len(write.data) <= first:
        return [write]
    parts: list[Change] = [Write(write.offset, write.data[:first])]
    for at in range(first, len(write.data), SECTOR_BYTES):
        parts.append(Write(write.offset + at, write.data[at : at + SECTOR_BYTES]))
    return parts


def survivors(changes: list[T], chance: random.Random) -> list[T]:
    """What a power cut leaves of changes that were not made durable: all, none, a beginning, all but one, or any."""
    if not changes:
        return []
    fate = chance.randrange(5)
    if fate == 0:
        return changes
    if fate == 1:
        return []
    if fate == 2:
        return changes[: chance.randint(0, len(changes))]
    if fate == 3:
        lost = chance.randrange(len(changes))
        return changes[:lost] + changes[lost + 1 :]
    return [change for change in changes if chance.random() < 0.5]

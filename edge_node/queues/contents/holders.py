"""Number of queues that still need each stored message."""

from __future__ import annotations

from weft.protocols.ranges import RangeSet

_BLOCK_BITS = 9
_BLOCK = 1 << _BLOCK_BITS
_ONES = b"\1" * _BLOCK
_MANY = 255
"""Number in a block that refers to the table of messages in more queues."""


class Holders:
    """Counts by the number of the message: a byte for each, in blocks of 512. Blocks without counts take no memory."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}
        self._needed: dict[int, int] = {}
        """Block -> messages in it that are needed."""
        self._many: dict[int, int] = {}
        """Message -> number of its queues, where it is 255 or more."""
        self.free = RangeSet()
        """Messages that no queue needs any more, and that the log still has to release."""

    def hold(self, seq: int, queues: int = 1) -> None:
        """Note that so many more queues need a message."""
        number, at = seq >> _BLOCK_BITS, seq & (_BLOCK - 1)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = bytearray(_BLOCK)
            self._needed[number] = 0
        count = block[at]
        if not count:
            self._needed[number] += 1
        total = queues + (self._many.pop(seq) if count == _MANY else count)
        if total >= _MANY:
            self._many[seq] = total
        block[at] = min(total, _MANY)

    def hold_run(self, first: int, end: int) -> None:
        """Note that one more queue needs messages [first, end)."""
        while first < end:
            number, at = first >> _BLOCK_BITS, first & (_BLOCK - 1)
            until = min(_BLOCK, at + end - first)
            block = self._blocks.setdefault(number, bytearray(_BLOCK))
            if any(block[at:until]):
                self._needed.setdefault(number, 0)
                for seq in range(first, first + until - at):
                    self.hold(seq)
            else:
                block[at:until] = _ONES[: until - at]
                self._needed[number] = self._needed.get(number, 0) + until - at
            first += until - at

    def drop(self, seq: int) -> None:
        """Note that one queue no longer needs a message."""
        number, at = seq >> _BLOCK_BITS, seq & (_BLOCK - 1)
        block = self._blocks[number]
        count = block[at]
        assert count, f"message {seq} is dropped by more queues than hold it"
        if count == _MANY:
            left = self._many.pop(seq) - 1
            if left >= _MANY:
                self._many[seq] = left
            block[at] = min(left, _MANY)
            return
        block[at] = count - 1
        if count > 1:
            return
        self.free.add(seq, seq + 1)
        self._needed[number] -= 1
        if not self._needed[number]:
            del self._blocks[number], self._needed[number]

    def drop_run(self, first: int, end: int) -> None:
        """Note that one queue no longer needs messages [first, end)."""
        while first < end:
            number, at = first >> _BLOCK_BITS, first & (_BLOCK - 1)
            until = min(_BLOCK, at + end - first)
            block = self._blocks[number]
            if block[at:until] == _ONES[: until - at]:
                block[at:until] = bytes(until - at)
                self.free.add(first, first + until - at)
                self._needed[number] -= until - at
                if not self._needed[number]:
                    del self._blocks[number], self._needed[number]
            else:
                for seq in range(first, first + until - at):
                    self.drop(seq)
            first += until - at

    def take_free(self) -> RangeSet:
        """Return the messages that no queue needs any more, each once."""
        free, self.free = self.free, RangeSet()
        return free

    def unneeded(self, end: int) -> RangeSet:
        """Return all numbers below ``end`` that no queue needs."""
        found = RangeSet([(0, end)])
        for number in sorted(self._blocks):
            block, base = self._blocks[number], number << _BLOCK_BITS
            at = 0
            while at < _BLOCK:
                if not block[at]:
                    at += 1
                    continue
                until = block.find(0, at)
                until = _BLOCK if until < 0 else until
                found.remove(base + at, base + until)
                at = until
        return found

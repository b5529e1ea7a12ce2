"""Shares of the topics in the rows that one window keeps: in a full window, the topic with the most loses rows."""

from __future__ import annotations

import heapq

_INT_BYTES = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_BIN_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
NAMED_MAX = 16
"""Maximum number of topics with their own count of a window's cut rows. Further topics share one count."""
NAME_CHARACTERS_MAX = 100
OTHERS = ""
"""Name under which the cut rows of further topics are counted."""


def topic_of(item: bytes) -> bytes:
    """Return the topic of a kept row: packed are its time, its topic, and more.

    Rows may have a megabyte, so the data behind the topic is not decoded.
    """
    at = 1 + _INT_BYTES.get(item[1], 1)
    length = _BIN_LENGTH_BYTES[item[at]]
    start = at + 1 + length
    return item[start : start + int.from_bytes(item[at + 1 : start])]


class _Share:
    """Rows of one topic."""

    __slots__ = ("chunks", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.chunks: list[int] = []
        """Numbers of the pieces that have some of them, ascending."""


class Shares:
    """Weights of the topics in a window, and the pieces of kept rows that have them.

    All of it is derived from the kept rows, so a start after a crash has the same.
    """

    def __init__(self) -> None:
        self._of: dict[bytes, _Share] = {}
        self._heap: list[tuple[int, bytes]] | None = None
        """Topics by weight, the largest first, with outdated entries. None until a row is cut."""

    def add(self, topic: bytes, chunk: int, weight: int) -> None:
        """Count a row that is kept in a piece."""
        share = self._of.get(topic)
        if share is None:
            share = self._of[topic] = _Share()
        share.weight += weight
        if not share.chunks or share.chunks[-1] != chunk:
            share.chunks.append(chunk)
        self._note(topic, share)

    def take(self, topic: bytes, weight: int) -> None:
        """Count a removed row."""
        share = self._of[topic]
        share.weight -= weight
        if share.weight:
            self._note(topic, share)
        else:
            del self._of[topic]

    def weight(self, topic: bytes) -> int:
        """Return the weight of a topic's rows."""
        share = self._of.get(topic)
        return share.weight if share is not None else 0

    def chunks(self, topic: bytes) -> list[int]:
        """Return the pieces that may have rows of a topic, ascending. The caller removes those that have none."""
        return self._of[topic].chunks

    def largest(self) -> bytes:
        """Return the topic of the greatest weight, at equal weights the least by its bytes. There must be one."""
        heap = self._heap
        if heap is None or len(heap) > 2 * len(self._of) + 64:
            heap = self._heap = [(-share.weight, topic) for topic, share in self._of.items()]
            heapq.heapify(heap)
        while self.weight(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def _note(self, topic: bytes, share: _Share) -> None:
        if self._heap is not None:
            heapq.heappush(self._heap, (-share.weight, topic))


def count_cut(counts: dict[str, int], topic: bytes, number: int = 1) -> None:
    """Count rows of a topic that were cut."""
    add_counts(counts, {topic.decode(errors="replace")[:NAME_CHARACTERS_MAX]: number})


def add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    """Add other counts of cut rows."""
    for name, number in more.items():
        at = name if name in counts or len(counts) < NAMED_MAX else OTHERS
        counts[at] = counts.get(at, 0) + number


def told(counts: dict[str, int]) -> str:
    """Return the topics whose rows were cut, for people: most first. Empty where they are unknown."""
    names = sorted(counts, key=lambda name: (name == OTHERS, -counts[name], name))
    return ", ".join(f"{name or 'others'} {counts[name]:,}" for name in names)

"""Where a log ends, and what of it is damaged: the rule that recovery goes by (``storage.segment_log.walk.scan``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.edge_node.inspect.view.entries import Entry, Hole, Wants
from weft.edge_node.inspect.view.segment_view import SegmentView
from weft.protocols.batch import BatchHeader
from weft.protocols.segment import EntryKind

_HELD_BYTES_MAX = 1 << 20
_HELD_ITEMS_MAX = 1000
"""About what a group holds at most: many small commits are given together."""


class Group(NamedTuple):
    """Items that belong together: the last commit of a log that is open, else a run of commits."""

    items: list[Entry | Hole]
    """In log order."""
    end: int
    """File offset of what follows."""
    is_proven: bool
    """Whether what follows proves that they were synced."""


def walk_groups(
    view: SegmentView, offset: int, wants: Wants, *, is_open: bool, beyond: bool = True, keep_unwanted: bool = False
) -> Iterator[Group]:
    """``SegmentView.walk`` by the rule that recovery goes by (``storage.segment_log.walk.scan``).

    Bad bytes that a commit mark follows are damage. Those that none follows are where the node is writing just now, or
    a torn commit: the log ends there.

    Args:
        is_open: it is the newest segment and not sealed.
        keep_unwanted: give the headers of unwanted batches too.
    """
    items: list[Entry | Hole] = []
    end = proven_end = offset
    proven = held_bytes = 0
    for item in view.walk(offset, wants, beyond=beyond):
        is_mark = isinstance(item, Entry) and item.kind is EntryKind.STREAMS
        if is_mark or not is_open:
            proven, proven_end = len(items), end
            if held_bytes >= _HELD_BYTES_MAX or proven >= _HELD_ITEMS_MAX:
                yield Group(items, end, is_proven=True)
                items, proven, held_bytes = [], 0, 0
        end = item.end
        if isinstance(item, Hole):
            items.append(item)
        elif item.body or keep_unwanted or not isinstance(item.value, BatchHeader):
            items.append(item)
            held_bytes += len(item.body)
    if not is_open:
        yield Group(items, end, is_proven=True)
        return
    yield Group(items[:proven], proven_end, is_proven=True)
    items = items[proven:]
    for at, item in enumerate(items):
        if isinstance(item, Hole):
            items, end = items[:at], item.offset
            break
    yield Group(items, end, is_proven=False)

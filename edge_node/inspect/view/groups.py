"""The commits of a segment: what one mark and the next hold between them, and what of it a later mark proves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.edge_node.inspect.view.segment_view import SegmentView, Wants
from weft.protocols.batch import BatchHeader
from weft.protocols.segment import EntryKind
from weft.storage.segment_log.walk.entry import Entry
from weft.storage.segment_log.walk.walker import Damage, Torn

_HELD_BYTES_MAX = 1 << 20
_HELD_ITEMS_MAX = 1000
"""About what a group holds at most: many small commits are given together."""


class Group(NamedTuple):
    """Items that belong together: the last commit of a log that is open, else a run of commits."""

    items: list[Entry | Damage]
    """In log order."""
    end: int
    """File offset of what follows."""
    is_proven: bool
    """Whether what follows proves that they were synced."""


def walk_groups(
    view: SegmentView, offset: int, wants: Wants, *, is_newest: bool, searches_zeros: bool = True
) -> Iterator[Group]:
    """Yield what ``SegmentView.walk`` gives in groups, without unwanted batches; nothing of a torn commit.

    Where the log ends is where the node is writing just now, or a torn commit: nothing is told of that.

    Args:
        is_newest: no later segment of the log is there.
    """
    is_open = is_newest and view.footer is None
    items: list[Entry | Damage] = []
    end = proven_end = offset
    proven = held_bytes = 0
    for item in view.walk(offset, wants, is_newest=is_newest, searches_zeros=searches_zeros):
        if isinstance(item, Torn):
            break
        is_mark = isinstance(item, Entry) and item.kind is EntryKind.STREAMS
        if is_mark or not is_open:
            proven, proven_end = len(items), end
            if held_bytes >= _HELD_BYTES_MAX or proven >= _HELD_ITEMS_MAX:
                yield Group(items, end, is_proven=True)
                items, proven, held_bytes = [], 0, 0
        end = item.end
        if isinstance(item, Damage):
            items.append(item)
        elif item.body or not isinstance(item.value, BatchHeader):
            items.append(item)
            held_bytes += len(item.body)
    if not is_open:
        yield Group(items, end, is_proven=True)
        return
    yield Group(items[:proven], proven_end, is_proven=True)
    yield Group(items[proven:], end, is_proven=False)

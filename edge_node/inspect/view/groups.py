"""The commits of a segment: the entries between two marks, and their proof by a later mark."""

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
"""Approximate bound on the items of a group: many small commits are yielded together."""


class EntryGroup(NamedTuple):
    """Items that belong together: the last commit of a log that is open, else a run of commits."""

    items: list[Entry | Damage]
    """Items in log order."""
    end: int
    """File offset after the group."""
    is_proven: bool
    """True when later entries prove that the items were synced."""


def walk_groups(
    view: SegmentView, offset: int, wants: Wants, *, is_newest: bool, searches_zeros: bool = True
) -> Iterator[EntryGroup]:
    """Yield the entries of ``SegmentView.walk`` in groups, without unwanted batches and without a torn commit.

    The log ends where the node is writing now, or with a torn commit; the groups do not distinguish them.

    Args:
        is_newest: whether the log has no later segment.
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
                yield EntryGroup(items, end, is_proven=True)
                items, proven, held_bytes = [], 0, 0
        end = item.end
        if isinstance(item, Damage):
            items.append(item)
        elif item.body or not isinstance(item.value, BatchHeader):
            items.append(item)
            held_bytes += len(item.body)
    if not is_open:
        yield EntryGroup(items, end, is_proven=True)
        return
    yield EntryGroup(items[:proven], proven_end, is_proven=True)
    yield EntryGroup(items[proven:], end, is_proven=False)

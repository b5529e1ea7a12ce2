"""Positions of readers in the log: for each stream the first sequence number that a reader has not had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.edge_node.subscriptions.message import NOWHERE, Message

Positions = dict[int, int]
"""Stream -> seq: everything before it was delivered, or is in flight."""


def lowered(positions: Mapping[int, int], missing: Iterable[tuple[int, int]]) -> Positions:
    """Return positions from which (stream, seq) that are missing are read, too."""
    found = dict(positions)
    for stream, seq in missing:
        found[stream] = min(seq, found.get(stream, seq))
    return found


def before(messages: Iterable[Message], ends: Mapping[int, int]) -> Positions:
    """Return the positions of a reader that has had everything up to the ends of the streams but these messages."""
    found = dict(ends)
    for each in messages:
        seq = each.seq
        if seq < found.get(each.stream, seq + 1):
            found[each.stream] = seq
    found.pop(NOWHERE, None)
    return found

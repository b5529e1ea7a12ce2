"""Sessions and shared subscriptions of the last run, restored at the start."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.sessions.parts import SessionParts
from weft.edge_node.sessions.records import SessionRecord
from weft.edge_node.sessions.session import Session


def recover(parts: SessionParts, adopt: Callable[[SessionRecord], Session]) -> None:
    """Restore every record of the journal, with a reader for the missed messages of each.

    Args:
        adopt: creates a session from a record, without its subscriptions and its place in the log.
    """
    for record in parts.journal.recover():
        session = adopt(record)
        for text, options in record.subscriptions.items():
            parts.filters.restore(session, text, options, record.identifiers.get(text))
        parts.persistence.restore_starts(session, record)
        if session.persistent:
            parts.readers.restore(session.window, record)
    # After the sessions, which are the members: their persistence and their messages in flight are known now.
    by_name = {record.name: record for record in parts.journal.recover_shared()}
    for shared in parts.shared.all():
        kept = by_name.get(shared.name)
        if kept is not None:
            parts.readers.restore_shared(shared, kept)
        elif shared.persistent:
            parts.readers.shared_behind(shared, None)

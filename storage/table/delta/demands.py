"""Demands of a table on its writers, which of them appends and joins of files meet, and what others may change before
a commit.

Delta protocol, "Writer Requirements" and "Table Features". A feature that a table lists and does not use, such as the
constraints that writer version 3 may have, asks nothing of a writer.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.storage.table.delta.state import DeltaState, StateBuilder
from weft.storage.table.errors import TableConflict, TableError

FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # appends and rewrites without changes need no change files
        "checkConstraints",
        "columnMapping",
        "deletionVectors",  # new files have none
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
"""Features that may be listed. Those that compute, check or rename values are refused where a table uses them."""
WRITER_VERSION_MAX = 7
_COLUMN_DEMANDS = ("delta.generationExpression", "delta.identity", "delta.invariants")


def demands_of(state: DeltaState) -> list[str]:
    """Return the demands of a table that this writer does not meet, by the names that Delta has for them."""
    protocol, properties = state.protocol, state.properties()
    if protocol.minWriterVersion > WRITER_VERSION_MAX:
        return [f"minWriterVersion {protocol.minWriterVersion}"]
    found = set(protocol.writerFeatures or ()) - FEATURES
    found |= {name for name in properties if name.startswith("delta.constraints.")}
    if properties.get("delta.columnMapping.mode", "none") != "none":
        found.add("delta.columnMapping.mode")
    for column in state.fields():
        told = column.get("metadata") or {}
        found |= {f"{name} ({column['name']})" for name in told if name.startswith(_COLUMN_DEMANDS)}
    partitions = state.metadata.get("partitionColumns") or []
    return sorted([*found, *(f"partition by {name}" for name in partitions)])


def check_writable(state: DeltaState, key: str) -> None:
    """Check that rows can be added to a table.

    Raises:
        TableError: the table demands of its writers what this one does not do.
    """
    if demands := demands_of(state):
        raise TableError(
            f"{key} demands {', '.join(demands)} of its writers, which Weft does not do. Remove that from the table, "
            "or move the table away: the hub makes it again from the log"
        )


def check_unconcerned(key: str, state: DeltaState, now: StateBuilder, applications: Collection[str]) -> None:
    """Check that a commit that was decided on a state is still right on top of a later version.

    Raises:
        TableConflict: it is not.
    """
    if (now.protocol, now.metadata) != (state.protocol, state.metadata):
        raise TableConflict(f"{key}: version {now.version} has another schema, properties or protocol")
    moved = [name for name in applications if now.transactions.get(name) != state.transactions.get(name)]
    if moved:
        raise TableConflict(f"{key}: another writer has moved the position of {moved[0]}")
    if now.removed:
        raise TableConflict(f"{key}: another writer has removed {min(now.removed)}")

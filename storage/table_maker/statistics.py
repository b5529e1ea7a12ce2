"""Properties of a table: its retention, and its columns with statistics, by which engines skip files
(``storage/table/delta/statistics``).

Every column that the table's ``delta.dataSkippingStatsColumns`` names has both bounds and a null count in every file:
deltalake's own dataset treats a missing bound as one that no value meets, and loses rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.protocols.payloads import PayloadKind
from weft.storage.table.names import PAYLOAD_PROPERTY
from weft.storage.table_maker.settings import RETENTION_HOURS, TableSettings

RETENTION_PROPERTIES = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
_HOURS = re.compile(r"interval \d+ hours")
"""Form in which the hub writes them."""
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
COLUMNS = ("_offset", "_shard", "_edge", "_seq", "_time")
"""The fixed columns with statistics, in addition to the topic levels of the table."""
EARLIER_COLUMNS = "_offset,_shard,_edge,_seq,_time"
"""The property as earlier releases wrote it. Their files have no statistics of ``_edge``."""
COMPLETE_EARLIER = ("_offset", "_shard", "_seq", "_time")
LEVELS_WITH_STATISTICS_MAX = 32
"""Maximum number of levels with bounds: each is in the table's log twice for every file. Delta's own default is 32
columns, too."""
LEVEL_CHARACTERS_MAX = 64
"""Length of a level's name above which it has no statistics, for the same reason."""


def statistics_columns(levels: Sequence[str], typed: Sequence[str] = ()) -> list[str]:
    """Return the columns with statistics, for a table with these topic levels and typed columns with bounds."""
    short = [name for name in levels if len(name) <= LEVEL_CHARACTERS_MAX]
    return [*COLUMNS, *short[:LEVELS_WITH_STATISTICS_MAX], *typed]


def new_properties(payload: PayloadKind, statistics: Sequence[str], settings: TableSettings) -> dict[str, str]:
    """Return the properties of a new table."""
    said = {} if payload is PayloadKind.BYTES else {PAYLOAD_PROPERTY: payload.label}
    return said | {STATISTICS_PROPERTY: ",".join(statistics)} | _retention(settings)


def changed_properties(now: Mapping[str, str], settings: TableSettings) -> dict[str, str]:
    """Return the properties of a table that the settings, or this release, want otherwise."""
    # Another form is its owner's word.
    wanted = RETENTION_PROPERTIES if settings.retention_hours is not None else ()
    ours = {name for name in wanted if _HOURS.fullmatch(now.get(name, ""))}
    changed = {name: value for name, value in _retention(settings).items() if name in ours and now[name] != value}
    if now.get(STATISTICS_PROPERTY) == EARLIER_COLUMNS:
        # The files of such a table have no bounds of `_edge`, which some engines treat as "no row matches".
        changed[STATISTICS_PROPERTY] = ",".join(COMPLETE_EARLIER)
    return changed


def _retention(settings: TableSettings) -> dict[str, str]:
    return dict.fromkeys(RETENTION_PROPERTIES, f"interval {settings.retention_hours or RETENTION_HOURS} hours")

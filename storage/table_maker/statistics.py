"""Columns of a table with statistics, by which engines skip files (``storage/table/delta/statistics``).

Every column that the table's ``delta.dataSkippingStatsColumns`` names has both bounds and a null count in every file:
deltalake's own dataset treats a missing bound as one that no value meets, and loses rows.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def statistics_columns(levels: Sequence[str]) -> list[str]:
    """Return the columns with statistics, for a table with these topic levels."""
    short = [name for name in levels if len(name) <= LEVEL_CHARACTERS_MAX]
    return [*COLUMNS, *short[:LEVELS_WITH_STATISTICS_MAX]]

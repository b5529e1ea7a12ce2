"""Numbers of columns in Parquet files, by which a reader knows a column whatever its name is later.

A number is for good: files of all releases have the same for a column. Delta tables without column mapping, as the
hub's are, go by the names; formats such as Iceberg go by the numbers.
"""

from __future__ import annotations

from hashlib import blake2b

import pyarrow as pa

FIELD_IDS = {
    "_offset": 1, "_shard": 2, "_edge": 3, "_log": 4, "_seq": 5, "_time": 6, "_clock": 7, "_received": 8, "_key": 9,
    "_resent": 10, "_headers": 11, "_edge_time": 14, "_origin": 15, "payload": 16, "_payload_bytes": 17,
    "_schema": 18, "_misfit": 19,
}  # fmt: skip
"""Numbers of the fixed columns. The next new column takes the lowest that was never used."""
MAP_IDS = {"_headers": (12, 13), "_misfit": (20, 21)}
"""Numbers of name and value inside the columns that are maps."""
LEVEL_IDS = range(1 << 16, 1 << 30)
"""Numbers of topic levels and typed columns, by a digest of the name: they depend neither on the other columns nor on
their order, unless two digests meet (in one of 10,000 tables with 512 levels); the later column then takes the next
number. Iceberg has numbers of its own from 2,147,483,447 on."""
_KEY = b"PARQUET:field_id"


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a table's rows with the number of each column, as pyarrow's Parquet writer takes it."""
    taken: set[int] = set()
    fields = []
    for field in schema:
        number = FIELD_IDS.get(field.name) or _level_id(field.name, taken)
        taken.add(number)
        fields.append(_numbered(field.with_type(_with_ids(field.name, field.type)), number))
    return pa.schema(fields)


def _level_id(name: str, taken: set[int]) -> int:
    digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    number = LEVEL_IDS[digest % len(LEVEL_IDS)]
    while number in taken:
        number = LEVEL_IDS[(number + 1 - LEVEL_IDS.start) % len(LEVEL_IDS)]
    return number


def _with_ids(column: str, kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_map(kind):
        return kind
    name, value = MAP_IDS[column]
    return pa.map_(_numbered(kind.key_field, name), _numbered(kind.item_field, value))


def _numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({_KEY: str(number).encode()})

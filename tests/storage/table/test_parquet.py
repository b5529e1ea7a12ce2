"""Numbers of columns: for good, one for each column, and as the page of the format says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from weft.protocols.payloads import PayloadKind
from weft.storage.table import parquet
from weft.storage.table.parquet import FIELD_IDS, LEVEL_IDS, MAP_IDS, with_field_ids
from weft.storage.table.rows import FIXED_COLUMNS, TOMBSTONE_COLUMN, row_schema

PAGE = Path(__file__).parents[3] / "docs/reference/formats/table-file.md"


def ids(schema: pa.Schema) -> dict[str, int]:
    return {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in with_field_ids(schema)}


def test_every_fixed_column_has_a_number_of_its_own() -> None:
    in_files = FIXED_COLUMNS - {TOMBSTONE_COLUMN}  # that one is in no file of a table
    assert FIELD_IDS.keys() == in_files, "give a new column the next number; those of old columns stay"
    numbers = [*FIELD_IDS.values(), *(number for pair in MAP_IDS.values() for number in pair)]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < LEVEL_IDS.start


def test_the_page_names_the_numbers() -> None:
    found = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    assert {name: int(number) for name, number in found.items()} == FIELD_IDS


def test_a_level_keeps_its_number_whatever_stands_beside_it() -> None:
    assert ids(row_schema(["line", "machine"])) | {"cell": ids(row_schema(["cell"]))["cell"]} == ids(
        row_schema(["machine", "cell", "line"])
    )
    assert ids(row_schema(["line"], PayloadKind.TEXT))["line"] == 1_057_622_326, "as files of the first release have it"


def test_levels_whose_digests_meet_get_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LEVEL_IDS", range(1 << 16, (1 << 16) + 4))
    levels = ["a", "b", "c", "d"]
    found = ids(row_schema(levels))
    assert {found[level] for level in levels} == set(parquet.LEVEL_IDS)

"""docs/reference/formats/mqtt-state.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from tests.edge_node.sessions.store.helpers import StoredNode
from weft.edge_node.sessions.records import Entry, decode_entry, encode_entry, unpack_ids

PAGE = (Path(__file__).parents[4] / "docs/reference/formats/mqtt-state.md").read_text("utf-8")


def table(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- {name} -->\n\n((?:\|.*\n)+)", PAGE)
    assert found is not None
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def kinds() -> dict[str, type[Entry]]:
    return {kind.__name__: kind for kind in Entry.__subclasses__()}


def meaning(entry: Entry) -> Any:
    found = {name: getattr(entry, name) for name in entry.__struct_fields__}
    if "packet_ids" in found:
        found["packet_ids"] = list(unpack_ids(found["packet_ids"]))
    if "record" in found:
        found["record"] = json.loads(found["record"])
    return {type(entry).__name__: json.loads(msgspec.json.encode(found))}


def test_the_table_of_entries_is_that_of_the_code() -> None:
    assert {(int(row[0]), row[1], row[2]) for row in table("entries")} == {
        (kind.__struct_config__.tag, name, ", ".join(kind.__struct_fields__)) for name, kind in kinds().items()
    }


def test_the_schema_is_that_of_the_database() -> None:
    node = StoredNode()
    found: list[tuple[str, str]] = []
    columns = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    node.state._database.run(lambda database: found.extend(database.execute(columns)))
    node.stop_database()
    assert {(row[0], row[1]) for row in table("schema")} == set(found)


def test_the_example_decodes_to_what_the_page_says() -> None:
    (listing,) = re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    entries = []
    for line in listing.splitlines():
        payload, _, name = line.partition(";")
        entry = decode_entry(bytes.fromhex(payload))
        assert entry is not None
        assert type(entry).__name__ == name.strip()
        assert encode_entry(entry) == bytes.fromhex(payload)
        entries.append(entry)
    assert [meaning(entry) for entry in entries] == json.loads(said)
    assert {type(entry) for entry in entries} == set(kinds().values()), "every kind is shown"

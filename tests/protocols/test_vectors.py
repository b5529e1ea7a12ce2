"""What was written yesterday is read tomorrow: the bytes under ``tests/vectors`` never change their meaning."""

from __future__ import annotations

import importlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import notation
from weft.protocols import errors
from weft.protocols import link as link_stream

VECTORS = Path(notation.__file__).parent
GOLDEN = sorted(VECTORS.glob("*/*.json"))
REJECT = sorted(VECTORS.glob("*/reject/*.json"))


def name_of(path: Path) -> str:
    return str(path.relative_to(VECTORS).with_suffix(""))


def load(path: Path) -> tuple[bytes, dict[str, Any]]:
    vector = json.loads(path.read_text(encoding="utf-8"))
    return bytes.fromhex("".join(vector["hex"])), vector


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_golden_bytes_keep_their_meaning(path: Path) -> None:
    data, vector = load(path)
    if path == VECTORS / "link/stream.json":
        found = {"frames": [notation.note_frame(frame) for frame in link_stream.FrameDecoder().decode(data)]}
    else:
        found = notation.decode(path.parent.name, data)
    assert found == vector["meaning"]


@pytest.mark.parametrize("path", [path for path in GOLDEN if not load(path)[1].get("decode_only")], ids=name_of)
def test_the_same_meaning_is_still_written_as_the_same_bytes(path: Path) -> None:
    data, vector = load(path)
    assert notation.encode(path.parent.name, vector["meaning"]) == data


@pytest.mark.parametrize("path", REJECT, ids=name_of)
def test_reject_vectors_are_refused_with_their_error(path: Path) -> None:
    data, vector = load(path)
    with pytest.raises(errors.CodecError) as caught:
        notation.decode(path.parent.parent.name, data)
    assert type(caught.value).__name__ == vector["error"]


@pytest.mark.parametrize("kind", ["batch", "segment", "chunk", "shard-state", "cluster-log", "queue-state", "link"])
def test_every_format_has_vectors_of_both_sorts(kind: str) -> None:
    assert len([path for path in GOLDEN if path.parent.name == kind]) >= 2
    assert len([path for path in REJECT if path.parent.parent.name == kind]) >= 5


@pytest.mark.parametrize("kind", ["batch", "segment", "chunk", "shard-state", "cluster-log", "link"])
def test_every_good_vector_is_refused_when_cut(kind: str) -> None:
    for path in GOLDEN:
        data, vector = load(path)
        if path.parent.name != kind or vector.get("decode_only") or path.stem == "open":
            continue
        for end in range(len(data)):
            try:
                found = notation.decode(kind, data[:end])
            except errors.CodecError:
                continue
            # A file or a stream may end between two entries or frames; then a beginning of it is there, no more.
            assert kind in ("segment", "link")
            part, whole = list(found.values())[-2:], list(vector["meaning"].values())[-2:]
            assert part != whole


# --- The format pages are right: their examples decode, and their tables are those of the code


PAGES = {path.stem: path for path in sorted((Path(__file__).parents[2] / "docs/reference/formats").glob("*.md"))}
EXAMPLE = re.compile(r"```hex\n(.*?)```\n\n```json\n(.*?)```", re.DOTALL)
TABLE = re.compile(r"<!-- (layout|numbers|fields|bounds): ([\w.]+) -->\n\n((?:\|.*\n)+)")


def examples() -> list[tuple[str, str, str]]:
    return [(kind, *found) for kind, path in PAGES.items() for found in EXAMPLE.findall(path.read_text("utf-8"))]


def tables(sort: str) -> list[Any]:
    """(what the table is about, its rows as lists of cells) for every table of a sort on every page."""
    return [
        pytest.param(target, [cells(line) for line in text.splitlines()[2:]], id=target)
        for path in PAGES.values()
        for kind, target, text in TABLE.findall(path.read_text("utf-8"))
        if kind == sort
    ]


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def look_up(target: str) -> Any:
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("kind", "listing", "meaning"), examples(), ids=[kind for kind, *_ in examples()])
def test_the_example_decodes_to_what_the_page_says(kind: str, listing: str, meaning: str) -> None:
    data = bytes.fromhex("".join(line.split(";")[0] for line in listing.splitlines()))
    assert notation.decode(kind, data) == json.loads(meaning)
    assert notation.encode(kind, json.loads(meaning)) == data


@pytest.mark.parametrize("kind", ["batch", "segment", "chunk", "shard-state", "cluster-log", "queue-state", "link"])
def test_every_format_has_a_page_with_an_example(kind: str) -> None:
    assert kind in {found for found, *_ in examples()}


@pytest.mark.parametrize(("target", "rows"), tables("layout"))
def test_fixed_layouts_are_those_of_the_code(target: str, rows: list[list[str]]) -> None:
    layout: struct.Struct = look_up(target)
    sizes: list[tuple[str, int]] = []
    for part in re.findall(r"\d*[a-zA-Z]", layout.format[1:]):
        # "4s" is one field, "xxx" are three bytes of one field.
        if part == "x" and sizes and sizes[-1][0] == "x":
            sizes[-1] = ("x", sizes[-1][1] + 1)
        else:
            sizes.append((part, struct.calcsize("<" + part)))
    at, expected = 0, []
    for _, size in sizes:
        expected.append((at, size))
        at += size
    assert [(int(row[0]), int(row[1])) for row in rows] == expected
    assert at == layout.size


@pytest.mark.parametrize(("target", "rows"), tables("numbers"))
def test_numbers_are_those_of_the_code(target: str, rows: list[list[str]]) -> None:
    assert {row[1]: int(row[0]) for row in rows} == {member.name: member.value for member in look_up(target)}


@pytest.mark.parametrize(("target", "rows"), tables("fields"))
def test_packed_fields_are_those_of_the_code(target: str, rows: list[list[str]]) -> None:
    assert tuple(row[0] for row in rows) == look_up(target).__struct_encode_fields__


@pytest.mark.parametrize(("target", "rows"), tables("bounds"))
def test_bounds_are_those_of_the_code(target: str, rows: list[list[str]]) -> None:
    module = importlib.import_module(target)
    assert {row[0]: int(row[1]) for row in rows} == {row[0]: getattr(module, row[0]) for row in rows}

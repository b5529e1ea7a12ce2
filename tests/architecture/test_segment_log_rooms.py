"""The rooms of the segment log stand in an order: each knows only those before it (decision record 0032)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "storage" / "segment_log"
NAME = "weft.storage.segment_log."
ORDER = ("errors", "settings", "names", "state", "walk", "room", "read", "commit", "recover", "log", "__init__")
PEERS = {"read", "commit"}
"""Beside each other: neither knows the other."""


def test_every_room_has_its_place() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found == set(ORDER)


def test_no_room_knows_a_later_one() -> None:
    assert [
        f"{source}:{line}: {module}"
        for source, line, module in _imports()
        if _is_up(_room(source), module.removeprefix(NAME).partition(".")[0])
    ] == []


def _is_up(room: str, imported: str) -> bool:
    return ORDER.index(imported) > ORDER.index(room) or (room != imported and {room, imported} == PEERS)


def _room(source: str) -> str:
    return source.partition("/")[0].removesuffix(".py")


def _imports() -> Iterator[tuple[str, int, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
                yield path.relative_to(ROOT).as_posix(), node.lineno, str(node.module)

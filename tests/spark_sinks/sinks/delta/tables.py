"""Tables that tests write, as other engines see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Every row of a table, sorted by its text: doubles stay doubles."""
    found = DeltaTable(str(table)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


def files(table: Path) -> list[str]:
    """Files of the newest version, relative to the table."""
    return sorted(uri.removeprefix(f"{table}/") for uri in DeltaTable(str(table)).file_uris())

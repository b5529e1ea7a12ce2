"""Rows of any number, printed as they come: an aligned table, CSV, or one JSON object a line."""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, Literal

import click
import msgspec
from rich.cells import cell_len

from weft.output import harmless
from weft.text.record import PAYLOAD_SHOWN_MAX, shown

Style = Literal["csv", "json", "table"]
_MEASURED_ROWS = 1000
"""Number of rows that determine the column widths; later values may be wider."""
_WIDTH_MAX = 80


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], style: Style) -> None:
    """Print rows, holding at most ``_MEASURED_ROWS`` of them."""
    write = {"csv": _csv, "json": _json, "table": _table}[style]
    write(columns, rows)
    sys.stdout.flush()


class _Lines:
    """Standard output as a CSV writer's file."""

    def write(self, line: str) -> None:
        # The writer ends lines with CR and LF: only then it quotes values with a CR, which readers take for a new line.
        sys.stdout.write(harmless(line.removesuffix("\r\n")) + "\n")


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(_Lines())
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_base64(cell) if isinstance(cell, bytes) else cell for cell in row])


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    names = _distinct(columns)
    for row in rows:
        cells = {
            f"{name}_base64" if isinstance(cell, bytes) else name: _base64(cell) if isinstance(cell, bytes) else cell
            for name, cell in zip(names, row, strict=True)
        }
        sys.stdout.write(harmless(msgspec.json.encode(cells).decode()) + "\n")


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    rest = iter(rows)
    measured = [[_cell(cell) for cell in row] for row in islice(rest, _MEASURED_ROWS)]
    widths = [min(_WIDTH_MAX, max(map(cell_len, cells))) for cells in zip(columns, *measured, strict=True)]
    count = 0
    _write(columns, widths)
    _write(["-" * width for width in widths], widths)
    for row in chain(measured, ([_cell(cell) for cell in row] for row in rest)):
        _write(row, widths)
        count += 1
    click.echo(f"({count} {'row' if count == 1 else 'rows'})", err=True)


def _write(cells: Sequence[str], widths: Sequence[int]) -> None:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"hex:{value[:PAYLOAD_SHOWN_MAX].hex()}" if isinstance(value, bytes) else str(value)[: 2 * PAYLOAD_SHOWN_MAX]
    text = shown(text)
    return text if len(text) <= PAYLOAD_SHOWN_MAX else text[:PAYLOAD_SHOWN_MAX] + "..."


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return distinct names for a JSON object: a join can give two columns one name."""
    names: list[str] = []
    for name in columns:
        number, distinct = 2, name
        while distinct in names:
            number, distinct = number + 1, f"{name}_{number}"
        names.append(distinct)
    return names


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()

"""Many counts of things with long names, on a terminal of 80 columns: a line with the name, and one with the counts."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import click

_GAP = 2
"""Spaces between two columns."""


class Counted(NamedTuple):
    """A thing with its counts."""

    name: str
    counts: tuple[int, ...]
    note: str = ""
    """Text below the counts."""


def print_counted(columns: Sequence[str], rows: Sequence[Counted]) -> None:
    """Print every count of every row in full, however narrow the terminal is.

    Columns side by side where they fit, else one below the other. Nothing is cut off or broken within a number.
    """
    room = shutil.get_terminal_size().columns
    widths = [
        max(len(column), *(len(f"{row.counts[at]}") for row in rows)) if rows else len(column)
        for at, column in enumerate(columns)
    ]
    fits = sum(widths) + _GAP * len(widths) <= room
    if fits:
        click.echo(_line(columns, widths))
    for row in rows:
        print_wrapped(row.name)
        if fits:
            click.echo(_line(list(map(str, row.counts)), widths))
        else:
            width = max(map(len, columns))
            for column, count in zip(columns, row.counts, strict=True):
                click.echo(f"  {column:<{width}}  {count}")
        if row.note:
            print_wrapped(row.note, indent="  ")


def print_wrapped(text: str, indent: str = "") -> None:
    """Print a sentence in lines that fit the terminal; names longer than a line are broken."""
    room = shutil.get_terminal_size().columns
    for line in textwrap.wrap(
        text, room, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    ):
        click.echo(line)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(" " * _GAP + f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))

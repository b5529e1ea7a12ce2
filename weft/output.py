"""How commands speak: facts as JSON or as tables, errors as sentences on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

FAILURE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2


class Refused(Exception):
    """The command line or a configuration is wrong: exit status 2."""


class Failed(click.ClickException):
    """The command was understood and could not be done: exit status 1."""

    exit_code = FAILURE_EXIT_CODE

    def show(self, _file: Any = None) -> None:
        print_error(self.message)


def print_error(message: str) -> None:
    """One error on standard error."""
    click.echo(f"weft: {message}" if "\n" not in message else message, err=True)


def print_json(facts: Any) -> None:
    """Facts for programs: one JSON document on standard output."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def print_json_line(facts: Any) -> None:
    """One JSON document on one line, for commands that print many."""
    import msgspec

    click.echo(msgspec.json.encode(facts).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Facts for people: a table on a terminal, tab-separated lines when the output goes elsewhere."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            click.echo("\t".join(str(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def print_facts(facts: dict[str, object]) -> None:
    """Names and values, one to a line."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def log_to_stderr(level: str) -> None:
    """Logging for the long-running commands. Under systemd the journal has the time already."""
    import os

    time = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    logging.basicConfig(level=level.upper(), format=f"{time}%(levelname)s %(name)s: %(message)s", stream=sys.stderr)

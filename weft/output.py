"""Output of the commands: facts as JSON or as tables, errors as sentences on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from weft.config.errors import Problem, format_path

# A file or a port that cannot be used ends ``run`` with 1, not 2: systemd does not start a unit again that ended with
# 2, and the file or port may be there a second later.
FAILURE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
STOPPED_EXIT_CODE = 130
"""Exit status that shells report after Ctrl-C: 128 and the number of SIGINT."""
EXIT_CODES = {
    0: "done; for a question: yes",
    FAILURE_EXIT_CODE: "it could not be done, or the answer is no; the same command may work later",
    USAGE_EXIT_CODE: "the command line or a configuration is wrong, or, for `check`, does not fit this machine",
    STOPPED_EXIT_CODE: "Ctrl-C, or the end of input where a question was asked",
}
"""Exit statuses and their meaning."""
_COLUMN_MIN = 20
"""Minimum width of a value's column in which lines are wrapped."""
_WORD_MAX = 12
"""Length up to which a word in a table stays on one line, however narrow the terminal is."""


class Refused(Exception):
    """A wrong command line or configuration: exit status 2."""

    exit_code = USAGE_EXIT_CODE


class Failed(click.ClickException):
    """A valid command that could not be done: exit status 1."""

    exit_code = FAILURE_EXIT_CODE


def harmless(text: str) -> str:
    """Return text for standard output: on a terminal with control characters escaped as in JSON.

    Control characters in a payload can move the cursor, change the title of the window or type into the shell. Programs
    get the text unchanged.
    """
    if text.isprintable() or not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in text)


def print_error(message: str) -> None:
    """Print one error on standard error."""
    click.echo(f"weft: {message}" if "\n" not in message else message, err=True)


def print_error_json(message: str, exit_status: int, problems: Sequence[Problem] = ()) -> None:
    """Print one error for programs: a JSON document on one line of standard error."""
    import msgspec

    facts = {"error": message, "exit_status": exit_status, "problems": [problem_facts(each) for each in problems]}
    click.echo(msgspec.json.encode(facts).decode(), err=True)


def problem_facts(problem: Problem) -> dict[str, str | int | None]:
    """Return a configuration's problem as JSON facts."""
    return {
        "file": problem.file,
        "line": problem.line or None,
        "setting": format_path(problem.path) or None,
        "message": problem.message,
    }


def print_json(facts: Any) -> None:
    """Print facts for programs: one JSON document on standard output."""
    import msgspec

    click.echo(harmless(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()))


def print_json_line(facts: Any) -> None:
    """Print facts for programs: one JSON document on one line, for commands that print many."""
    import msgspec

    click.echo(harmless(msgspec.json.encode(facts).decode()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print facts for people: a table on a terminal, tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            click.echo("\t".join(str(cell) for cell in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    table = Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for at, column in enumerate(columns):
        cells = [row[at] for row in rows]
        is_number = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        # Lines break between words as long as they can; nothing is ever cut off.
        word = max(len(word) for text in (column, *cells) for word in (str(text).split() or [""]))
        table.add_column(
            column, justify="right" if is_number else "left", overflow="fold", min_width=min(word, _WORD_MAX)
        )
    for row in rows:
        table.add_row(*(Text(harmless(str(cell))) for cell in row))
    click.echo()
    Console(highlight=False).print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one to a line; a value that needs several lines stays in its column."""
    width = max((len(name) for name in facts), default=0)
    room = shutil.get_terminal_size().columns - width - 2 if sys.stdout.isatty() else 0
    for name, value in facts.items():
        lines = str(value).splitlines() or [""]
        if room >= _COLUMN_MIN:
            lines = [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
        for at, line in enumerate(lines):
            click.echo(harmless(f"{'' if at else name:<{width}}  {line}".rstrip()))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 record``, ``2 records``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

"""Manual pages from the command line's own help: a page for each command, in the macros of man(7)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from docs.tools.commands import contexts
from weft.cli import cli
from weft.output import EXIT_CODES

_VERBATIM = "\b"
"""The line with which click marks a paragraph whose lines stay as they are."""
_QUOTED = re.compile(r"`([^`]+)`")


def manuals(version: str) -> dict[str, str]:
    """Return file name -> content of every manual page."""
    return {f"{_name(context)}.1": _page(context, version) for context in contexts("weft", cli)}


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, version: str) -> str:
    command, name = context.command, _name(context)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{_escaped(name.upper())}" 1 "" "weft {version}" "Weft"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_marked(command.get_short_help_str(limit=200))}",
        ".SH SYNOPSIS",
        f"\\fB{_escaped(context.command_path)}\\fP {_escaped(usage)}",
        ".SH DESCRIPTION",
        *_paragraphs(inspect.cleandoc(command.help or "").partition("\f")[0]),
    ]
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    records = [record for each in options if (record := each.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        for option, text in records:
            lines += [".TP", f"\\fB{_escaped(option)}\\fP", _marked(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            lines += [".TP", f"\\fB{_escaped(f'{name}-{inner_name}')}\\fP(1)"]
            lines.append(_marked(inner.get_short_help_str(limit=200)))
    lines.append(".SH EXIT STATUS")
    for status, meaning in EXIT_CODES.items():
        lines += [".TP", f"\\fB{status}\\fP", _marked(meaning)]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_escaped(_name(context.parent))}\\fP(1)"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        lines = paragraph.strip("\n").split("\n")
        if number:
            yield ".PP"
        if lines[0] == _VERBATIM:
            yield from (".nf", *map(_marked, lines[1:]), ".fi")
        else:
            yield _marked(" ".join(lines))


def _marked(text: str) -> str:
    """Return text whose words in backticks are bold."""
    return _QUOTED.sub(r"\\fB\1\\fP", _escaped(text))


def _escaped(text: str) -> str:
    """Return text of which groff takes nothing as its own: no escape, no request at the beginning of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped

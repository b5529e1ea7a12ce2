"""Every command of the command line, each with its context: for the reference page and the manual pages."""

from __future__ import annotations

from collections.abc import Iterator

import click


def contexts(name: str, command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command, then those of the commands in it; modules of these are imported."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=100)
    yield context
    if isinstance(command, click.Group):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            yield from contexts(inner_name, inner, context)

"""Check of the files that functions work with, before a node starts."""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.functions.enrich import Enrich
from weft.config.functions.step import FunctionStep
from weft.config.functions.user_code import Python
from weft.config.machine import why_unreadable
from weft.edge_node.functions.kinds.enrich import wanted_of
from weft.edge_node.functions.kinds.lookup_table import TableError, read_table


def unusable_files(step: FunctionStep) -> Iterator[tuple[str, str]]:
    """Yield (setting, problem) of the files of a function. Blocks; runs no code of users."""
    _, settings = step.chosen
    if isinstance(settings, Enrich):
        try:
            read_table(wanted_of(settings))
        except TableError as error:
            yield "file", str(error)
    elif isinstance(settings, Python):
        yield from _code(settings)


def _code(settings: Python) -> Iterator[tuple[str, str]]:
    try:
        with open(settings.file, encoding="utf-8") as file:
            compile(file.read(), settings.file, "exec")
    except OSError as error:
        yield "file", f"{settings.file}: {why_unreadable(error)}"
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        yield "file", f"{settings.file}{line}: is no Python: {getattr(error, 'msg', error)}"
    for path in settings.files:
        try:
            with open(path, "rb") as other:
                other.read(1)
        except OSError as error:
            yield "files", f"{path}: {why_unreadable(error)}"

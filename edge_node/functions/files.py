"""Check of what is in the files that functions work with, before a node starts."""

from __future__ import annotations

from typing import Any

from weft.config.functions.enrich import Enrich
from weft.config.functions.user_code import Python
from weft.edge_node.functions.kinds.enrich import wanted_of
from weft.edge_node.functions.kinds.lookup_table import TableError, read_table


def unusable_content(settings: Any) -> str | None:
    """Return why a function cannot use its file, which can be read; None when it can. Blocks; runs no code of users."""
    if isinstance(settings, Enrich):
        try:
            read_table(wanted_of(settings))
        except TableError as error:
            return str(error)
    elif isinstance(settings, Python):
        try:
            with open(settings.file, encoding="utf-8") as file:
                compile(file.read(), settings.file, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            return f"{settings.file}{line}: is no Python: {getattr(error, 'msg', error)}"
    return None

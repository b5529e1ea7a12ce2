"""Check of what is in the files that functions work with, before a node starts."""

from __future__ import annotations

import ast
import difflib
from typing import Any

from weft.config.functions.enrich import Enrich
from weft.config.functions.user_code import Python
from weft.edge_node.functions.kinds.enrich import wanted_of
from weft.edge_node.functions.kinds.lookup_table import TableError, read_table


def _without_function(code: ast.Module, settings: Python) -> str | None:
    """Return that a file plainly lacks the function; None where it has it, or may make it in another way."""
    wanted = settings.function or ("process_batch" if settings.batch else "process")
    plain = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [each.name for each in code.body if isinstance(each, plain)]
    if wanted in names or any(wanted in ast.dump(each) or _imports_all(each) for each in code.body
                              if not isinstance(each, plain)):  # fmt: skip
        return None
    near = difflib.get_close_matches(wanted, names, 1, 0.6)
    advice = f"Did you mean {near[0]}? Rename it, or set `function`" if near else f"Define {wanted}"
    return f"{settings.file}: it has no function {wanted}. {advice}"


def _imports_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


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
                code = ast.parse(file.read(), settings.file)
        except (OSError, SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            return f"{settings.file}{line}: is no Python: {getattr(error, 'msg', error)}"
        return _without_function(code, settings)
    return None
